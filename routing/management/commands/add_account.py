"""`manage.py add_account`: puts a sign-in or an API key into an organization's pool."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations
from config.clock import utc_now
from config.management.operator import OperatorCommand
from routing import accounts
from routing.models import PoolAccount

LARGEST_FILE_BYTES = 1024 * 1024


class Command(OperatorCommand):
    help = "Adds an account to an organization's pool; the same identity again renews it."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")
        parser.add_argument("--kind", required=True, choices=["chatgpt", "openai"], help="chatgpt: sign-in; openai: API key")
        parser.add_argument("--label", required=True, help="the name that pages show")
        parser.add_argument("--auth-json", metavar="FILE", help="the file that the CLI's sign-in wrote (kind chatgpt)")
        parser.add_argument("--plan", help="plus, pro_100, pro_200, ...: when the sign-in does not name the size (kind chatgpt)")
        parser.add_argument("--accept-terms", action="store_true", help="accept the terms of sign-in accounts (kind chatgpt)")
        parser.add_argument("--api-key-stdin", action="store_true", help="read the API key from standard input (kind openai)")
        parser.add_argument("--base-url", metavar="URL", help="address of the API; default: the install's (kind openai)")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        kind = options["kind"]
        _refuse_foreign(kind, options)
        organization = organizations.find(options["organization"])
        if kind == "chatgpt":
            account = accounts.add_chatgpt(
                organization,
                _auth_json(options["auth_json"]),
                label=options["label"],
                plan=options["plan"],
                accept_terms=options["accept_terms"],
                by=None,
                now=utc_now(),
            )
        else:
            account = accounts.add_openai(
                organization,
                sys.stdin.readline(),
                label=options["label"],
                base_url=options["base_url"],
                by=None,
                now=utc_now(),
            )
        return _printed(account)


def _refuse_foreign(kind: str, options: Mapping[str, Any]) -> None:
    """Arguments of the other kind are mistakes, not to be passed over in silence."""
    names = {"auth_json": "--auth-json", "plan": "--plan", "accept_terms": "--accept-terms"}
    others = {"api_key_stdin": "--api-key-stdin", "base_url": "--base-url"}
    foreign = others if kind == "chatgpt" else names
    for name, flag in foreign.items():
        if options[name]:
            raise CommandError(f"{flag} does not go with --kind {kind}.")
    needed = ("auth_json", "--auth-json FILE") if kind == "chatgpt" else ("api_key_stdin", "--api-key-stdin")
    if not options[needed[0]]:
        raise CommandError(f"--kind {kind} needs {needed[1]}.")


def _auth_json(path: str) -> object:
    """The file's JSON. Its content is never quoted in an error."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise CommandError(f"{path} is too large to be an auth.json.")
    try:
        return json.loads(content)
    except ValueError:
        raise CommandError(f"{path} is not JSON.") from None


def _printed(account: PoolAccount) -> dict[str, str]:
    return {"id": str(account.uuid), "label": account.label, "identity": account.identity}
