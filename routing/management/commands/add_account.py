"""`manage.py add_account`: puts a sign-in or an API key into an organization's pool, once its upstream took it."""

import getpass
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations
from accounts.models import Organization
from config.clock import utc_now
from config.management.operator import OperatorCommand, text
from routing import device, joining, oauth
from routing.joining import Joined, Outcome

START = ""
"""What `--sign-in` and `--device` are without the id of a sign-in that was begun before."""

WAYS = {
    "sign_in": "--sign-in",
    "device": "--device",
    "auth_json": "--auth-json FILE",
    "api_key_stdin": "--api-key-stdin",
}
SIGN_IN = "chatgpt"
BY_KEY = ("openai", "openai_compatible", "anthropic")
"""Kinds whose accounts come by an API key; the first one where none is named."""
KINDS = {"sign_in": (SIGN_IN,), "device": (SIGN_IN,), "auth_json": (SIGN_IN,), "api_key_stdin": BY_KEY}
OF_SIGN_INS = {"plan": "--plan", "accept_terms": "--accept-terms"}
OF_KEYS = {"base_url": "--base-url", "models": "--models"}


class Command(OperatorCommand):
    help = "Adds an account to an organization's pool; the same identity again renews it. Its upstream is asked first."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")
        parser.add_argument(
            "--kind",
            choices=[SIGN_IN, *BY_KEY],
            help="chatgpt: sign-in; openai: API key; openai_compatible: key and address of Azure, vLLM, a gateway; anthropic: API "
            "key; without it, a sign-in or OpenAI's key",
        )
        parser.add_argument(
            "--sign-in",
            nargs="?",
            const=START,
            metavar="ID",
            help="sign in in a browser, and paste the address that it ends at; with the ID of one that was begun, only paste",
        )
        parser.add_argument(
            "--device",
            nargs="?",
            const=START,
            metavar="ID",
            help="sign in by a code on another device; with an ID, wait on for that",
        )
        parser.add_argument("--auth-json", nargs="+", metavar="FILE", help="files that the CLI's sign-in wrote, each one or a list")
        parser.add_argument("--api-key-stdin", "--api-key", action="store_true", help="read the API key from standard input")
        parser.add_argument("--label", help="the name that pages show; default: the sign-in's e-mail")
        parser.add_argument("--plan", help="plus, pro_100, pro_200, ...: when the sign-in does not name the size")
        parser.add_argument("--accept-terms", action="store_true", help="accept the terms of sign-in accounts")
        parser.add_argument(
            "--base-url", metavar="URL", help="address of the API of an API key, with its /v1; default: the install's"
        )
        parser.add_argument(
            "--models", nargs="+", metavar="MODEL", help="the models that an API key's account serves; default: all"
        )

    def operate(self, **options: Any) -> Mapping[str, Any]:
        way = _way(options)
        self.refused = 0
        organization = organizations.find(options["organization"])
        if way == "auth_json":
            return self._files(organization, options)
        if way == "sign_in":
            return self._browser(organization, options)
        if way == "device":
            return self._device(organization, options)
        given = getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline()
        joined = joining.add_key(
            organization,
            given,
            kind=options["kind"] or BY_KEY[0],
            label=options["label"],
            base_url=options["base_url"],
            models=options["models"],
            by=None,
            now=utc_now(),
        )
        return _printed(joined)

    def handle(self, *args: Any, **options: Any) -> None:
        super().handle(*args, **options)
        if self.refused:
            raise CommandError(f"{self.refused} of the sign-ins were refused.")

    def present(self, result: Mapping[str, Any]) -> None:
        if "files" not in result:
            super().present(result)
        for row in result.get("files", []):
            self.stdout.write("  ".join(text(row[name]) for name in ("file", "outcome", "label", "reason")))

    # ------------------------------------------------------------------------------------------------------- the ways

    def _files(self, organization: Organization, options: Mapping[str, Any]) -> Mapping[str, Any]:
        paths = options["auth_json"]
        if len(paths) > 1 and options["label"]:
            raise CommandError("--label names one account, and several files were given.")
        unread: list[Outcome] = []
        files = []
        for path in paths:
            try:
                files.append((path, _content(path)))
            except OSError as error:
                unread.append(Outcome(path, None, "file_unreadable", f"{path} cannot be read: {error.strerror}."))
        outcomes = unread
        if files:
            about = _of_flow(options)
            outcomes = [*unread, *joining.add_files(organization, files, **about)]
        if len(outcomes) == 1:
            (one,) = outcomes
            if one.joined is None:
                raise CommandError(one.reason)
            return _printed(one.joined)
        self.refused = sum(outcome.joined is None for outcome in outcomes)
        return {"files": [_row(outcome) for outcome in outcomes]}

    def _browser(self, organization: Organization, options: Mapping[str, Any]) -> Mapping[str, Any]:
        flow_id = options["sign_in"]
        if flow_id == START:
            started = oauth.start(organization, **_of_flow(options))
            flow_id = str(started.flow_id)
            self._say(f"Open this address in a browser and sign in:\n\n{started.url}\n")
            self._say("The page that it ends at does not open. Paste its address here, all of it:")
        pasted = sys.stdin.readline()
        if not pasted.strip():
            # Begun here, to be finished by a later command, or on another machine.
            return {"sign_in": flow_id, "then": f"add_account {organization.slug} --sign-in {flow_id}, within 15 minutes"}
        return _printed(oauth.finish(organization, flow_id, pasted, by=None, now=utc_now()))

    def _say(self, line: str) -> None:
        """To the person at the terminal, beside what is printed; not in the colour of an error."""
        self.stderr.write(line, lambda plain: plain)

    def _device(self, organization: Organization, options: Mapping[str, Any]) -> Mapping[str, Any]:
        flow_id = options["device"]
        if flow_id == START:
            started = device.start(organization, **_of_flow(options))
            flow_id = str(started.flow_id)
            self._say(f"Open {started.verification_url} on any device and enter {started.user_code}")
            self._say(f"Waiting. To wait again after an interruption: add_account {organization.slug} --device {flow_id}")
            time.sleep(started.interval_seconds)
        while True:
            found = device.poll(organization, flow_id, by=None, now=utc_now())
            if isinstance(found, Joined):
                return _printed(found)
            time.sleep(found.retry_after)


def _way(options: Mapping[str, Any]) -> str:
    """How the account comes. What does not go with it is a mistake, not to be passed over in silence."""
    kind = options["kind"]
    ways = [way for way in WAYS if options[way] is not None and options[way] is not False]
    if not ways:
        needed = [flag for way, flag in WAYS.items() if kind is None or kind in KINDS[way]]
        raise CommandError(f"{f'--kind {kind}' if kind else 'add_account'} needs {' or '.join(needed)}.")
    if len(ways) > 1:
        raise CommandError(f"{' and '.join(WAYS[way] for way in ways)} do not go together.")
    (way,) = ways
    if kind is not None and kind not in KINDS[way]:
        raise CommandError(f"{WAYS[way].split()[0]} does not go with --kind {kind}.")
    kind = kind or KINDS[way][0]
    for name, flag in (OF_KEYS if kind == SIGN_IN else OF_SIGN_INS).items():
        if options[name]:
            raise CommandError(f"{flag} does not go with --kind {kind}.")
    if kind != SIGN_IN and not options["label"]:
        raise CommandError("An API key needs --label: it has no name of its own.")
    if kind == "openai_compatible" and not options["base_url"]:
        raise CommandError("--kind openai_compatible needs --base-url.")
    return way


def _of_flow(options: Mapping[str, Any]) -> dict[str, Any]:
    names = {"label": options["label"] or "", "plan": options["plan"], "accept_terms": options["accept_terms"]}
    return {**names, "by": None, "now": utc_now()}


def _content(path: str) -> bytes:
    """The file, up to a bound that tells one that is too large. Raises OSError."""
    with Path(path).open("rb") as file:
        return file.read(joining.LARGEST_FILE_BYTES + 1)


def _printed(joined: Joined) -> dict[str, str]:
    account = joined.account
    return {"id": str(account.uuid), "label": account.label, "identity": account.identity}


def _row(outcome: Outcome) -> dict[str, str]:
    """One line of the table: what became of one sign-in."""
    said = {"file": outcome.source, "code": outcome.code, "reason": outcome.reason}
    if outcome.joined is None:
        return {**said, "outcome": "refused", "id": "", "label": "", "identity": ""}
    return {**said, "outcome": "added" if outcome.joined.is_new else "renewed", **_printed(outcome.joined)}
