"""The issuer's part of the scripted upstream: a browser's sign-in, a device's, and the trade of codes and refresh tokens.

Nobody has to click: the authorize page sends the browser back at once, as whom `POST /control/person` named (a new person each time
otherwise). A device's code waits until `POST /control/approve` names its person, or refuses it.
"""

import base64
import hashlib
import secrets
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from demo.upstream_call import Call
from demo.upstream_responses import parsed, problem
from demo.upstream_script import Wrong
from demo.upstream_state import ACCESS_SECONDS, State, only

PERSON_FIELDS = frozenset({"account_id", "user_id", "email", "plan"})
CODE_SECONDS = 300.0
DEVICE_SECONDS = 900.0
INTERVAL = "1"
"""A text, as the real one sends it."""

CALLBACKS = ("http://127.0.0.1:1455/auth/callback", "http://localhost:1455/auth/callback")
AUTHORIZE_FIELDS = ("client_id", "redirect_uri", "code_challenge", "state", "scope")


@dataclass(slots=True)
class Code:
    """What an authorization code is good for, once."""

    person: dict[str, Any]
    client_id: str
    redirect_uri: str
    challenge: str
    expires_at: float


@dataclass(slots=True)
class Device:
    """A device that waits. `person` None: nobody has approved it yet."""

    user_code: str
    client_id: str
    expires_at: float
    person: dict[str, Any] | None = None
    is_denied: bool = False


@dataclass(slots=True)
class Issuer:
    """Codes and devices; the tokens themselves are the State's."""

    state: State
    codes: dict[str, Code] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    people: list[dict[str, Any]] = field(default_factory=list)

    def reset(self) -> None:
        self.codes.clear()
        self.devices.clear()
        self.people.clear()

    # ------------------------------------------------------------------------------------------------------ control

    def person(self, given: dict[str, Any]) -> None:
        """Who signs in next, at the authorize page. Raises Wrong."""
        only(given, PERSON_FIELDS)
        self.people.append(given)

    def approve(self, given: dict[str, Any]) -> None:
        """The person of a device's code, or its refusal. Raises Wrong."""
        only(given, PERSON_FIELDS | {"user_code", "deny"})
        device = next((one for one in self.devices.values() if one.user_code == given.get("user_code")), None)
        if device is None:
            raise Wrong(f"no device waits with the code {given.get('user_code')!r}")
        device.is_denied = bool(given.get("deny"))
        device.person = {name: given[name] for name in given if name in PERSON_FIELDS}

    # ------------------------------------------------------------------------------------------------------- browser

    async def authorize(self, call: Call) -> None:
        """GET /oauth/authorize: back to the redirect_uri with a code."""
        asked = dict(urllib.parse.parse_qsl(call.query))
        is_whole = all(asked.get(name) for name in AUTHORIZE_FIELDS) and asked.get("response_type") == "code"
        if not is_whole or asked.get("code_challenge_method") != "S256" or asked["redirect_uri"] not in CALLBACKS:
            await call.json(400, problem("The sign-in was asked for in a way that is not known.", "invalid_request"))
            return
        person = self.people.pop(0) if self.people else {}
        code = self._code(person, asked["client_id"], asked["redirect_uri"], asked["code_challenge"])
        back = urllib.parse.urlencode({"code": code, "scope": asked["scope"], "state": asked["state"]})
        await call.json(302, "", [("location", f"{asked['redirect_uri']}?{back}")])

    def _code(self, person: dict[str, Any], client_id: str, redirect_uri: str, challenge: str) -> str:
        code = f"ac_{secrets.token_urlsafe(32)}"
        self.codes[code] = Code(person, client_id, redirect_uri, challenge, time.time() + CODE_SECONDS)
        return code

    # -------------------------------------------------------------------------------------------------------- device

    async def usercode(self, call: Call) -> None:
        """POST /api/accounts/deviceauth/usercode."""
        given = parsed(call.body) or {}
        if not isinstance(given.get("client_id"), str):
            await call.json(400, problem("client_id is missing.", "invalid_request"))
            return
        device_id = f"deviceauth_{secrets.token_urlsafe(24)}"
        user_code = "-".join("".join(secrets.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(4)) for _ in range(2))
        self.devices[device_id] = Device(user_code, given["client_id"], time.time() + DEVICE_SECONDS)
        await call.json(200, {"device_auth_id": device_id, "user_code": user_code, "interval": INTERVAL})

    async def device_token(self, call: Call) -> None:
        """POST /api/accounts/deviceauth/token: a code to exchange, once somebody has approved."""
        given = parsed(call.body) or {}
        device_id = str(given.get("device_auth_id"))
        device = self.devices.get(device_id)
        if device is None or device.user_code != given.get("user_code") or device.expires_at <= time.time():
            await call.json(400, problem("The code has expired.", "expired_token"))
        elif device.is_denied:
            await call.json(403, problem("The sign-in was refused.", "access_denied"))
        elif device.person is None:
            await call.json(403, problem("Nobody has entered the code yet.", "authorization_pending"))
        else:
            del self.devices[device_id]
            verifier = secrets.token_urlsafe(48)
            redirect_uri = f"{origin(call)}/deviceauth/callback"
            code = self._code(device.person, device.client_id, redirect_uri, challenge_of(verifier))
            answer = {"authorization_code": code, "code_challenge": challenge_of(verifier), "code_verifier": verifier}
            await call.json(200, answer)

    async def device_page(self, call: Call) -> None:
        """GET /codex/device: where a person would enter the code."""
        await call.json(200, "Scripted issuer: POST /control/approve names the person of a code.")

    # --------------------------------------------------------------------------------------------------------- trade

    async def token(self, call: Call) -> None:
        """POST /oauth/token: a refresh comes as JSON, a code as a form."""
        given: dict[str, Any] | None
        if call.headers.get("content-type", "").startswith("application/json"):
            given = parsed(call.body)
        else:
            given = dict(urllib.parse.parse_qsl(call.body.decode("latin-1")))
        if given is None:
            await call.json(400, problem("The body is not JSON.", "invalid_request"))
        elif given.get("grant_type") == "refresh_token":
            status, value = self.state.refresh(str(given.get("refresh_token")))
            await call.json(status, value)
        elif given.get("grant_type") == "authorization_code":
            await self._exchange(call, given)
        else:
            await call.json(400, problem("Unsupported grant_type", "unsupported_grant_type"))

    async def _exchange(self, call: Call, given: dict[str, Any]) -> None:
        code = self.codes.pop(str(given.get("code")), None)
        is_good = (
            code is not None
            and code.expires_at > time.time()
            and code.client_id == given.get("client_id")
            and code.redirect_uri == given.get("redirect_uri")
            and code.challenge == challenge_of(str(given.get("code_verifier")))
        )
        if code is None or not is_good:
            await call.json(400, problem("The authorization code is not valid.", "invalid_grant"))
            return
        tokens = self.state.mint(code.person)["tokens"]
        tokens.pop("account_id")
        scope = "openid profile email offline_access"
        await call.json(200, {**tokens, "token_type": "Bearer", "expires_in": int(ACCESS_SECONDS), "scope": scope})


def challenge_of(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def origin(call: Call) -> str:
    return f"http://{call.headers.get('host', '')}"
