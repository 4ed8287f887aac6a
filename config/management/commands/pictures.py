"""`manage.py pictures`: every page of the running demo in every mode, as files, and what is wrong with it."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config.launch import folders
from demo import chromium, pictures


class Command(BaseCommand):
    help = (
        "Take a picture of every page of the running demo in light, dark, at 390 px and in each language, and say what is wrong "
        "with it: violations of WCAG 2.2 AA, errors of the console, a page wider than the screen, what no key reaches. Ends with 1 "
        "if anything is."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--to", default="pictures", metavar="DIR", help="where the pictures go (pictures)")
        parser.add_argument("--check", action="store_true", help="take none, only say what is wrong")
        for name, choices in (("page", pictures.PAGES), ("mode", pictures.MODES)):
            known = [one.name for one in choices]
            parser.add_argument(f"--{name}", action="append", choices=known, help=f"only this {name}; may repeat")

    def handle(self, *, to: str, check: bool, page: list[str] | None, mode: list[str] | None, **options: Any) -> None:
        described = _running_demo()
        folder = None if check else Path(to)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        organization = described["organizations"][0]
        members = [one for one in reversed(organization["members"]) if one["password"]]
        logins = {one["role"]: pictures.Login(one["email"], one["password"]) for one in members}
        wrong = count = 0
        path = chromium.find()
        if path is None:
            raise CommandError("There is no Chromium on PATH. On Debian: apt-get install chromium")
        try:
            from playwright.sync_api import sync_playwright
        except ImportError:
            raise CommandError("playwright is not installed: it is of the group e2e, which `manage.py test` installs.") from None
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, headless=True, args=chromium.FLAGS)
            walked = pictures.walk(
                browser,
                described["base_url"],
                organization["slug"],
                logins,
                folder=folder,
                pages=tuple(one for one in pictures.PAGES if not page or one.name in page),
                modes=tuple(one for one in pictures.MODES if not mode or one.name in mode),
            )
            for seen in walked:
                count += 1
                wrong += len(seen.problems)
                self.stdout.write(f"{seen.page.name:16} {seen.mode.name:10} {'ok' if not seen.problems else ''}".rstrip())
                for problem in seen.problems:
                    self.stdout.write(f"    {problem}")
            browser.close()
        self.stdout.write(f"{count} {'pages' if folder is None else f'pictures in {folder}'}, {wrong} problems")
        if wrong:
            raise SystemExit(1)


def _running_demo() -> dict[str, Any]:
    given = folders.given_var()
    path = (given or folders.default_var() / "demo") / "demo.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise CommandError(f"No demo is running on {path.parent}: start one by `python3 manage.py demo`.") from None
    return found
