"""What the scripted upstream remembers: accounts with their windows and tokens, API keys, responses, and what it received."""

import base64
import binascii
import json
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from demo.upstream_call import Received
from demo.upstream_script import Scripts, Wrong

AUTH_CLAIM = "https://api.openai.com/auth"
PROFILE_CLAIM = "https://api.openai.com/profile"
ACCESS_SECONDS = 864_000.0
MINUTES = {"short": 300, "week": 10080}
# What fills a week's window; a plan takes a multiple of it.
TOKENS_FOR_A_WEEK = 20_000_000
PLAN_SIZES = {"pro": 20, "business": 2, "team": 2}
SHORT_SHARE = 6
"""A token takes six times the share of the five-hour window that it takes of the week's."""

MOST_RECEIVED = 20_000
MOST_BODY_BYTES = 256 * 1024 * 1024
MOST_RESPONSES = 50_000


def encoded(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()


def decoded(text: str) -> dict[str, Any]:
    """The reverse of `encoded`; {} for anything else."""
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class Window:
    """How much of one window is used. `resets_at` unix seconds."""

    minutes: int
    percent: float = 0.0
    resets_at: int = 0

    def touch(self, now: float) -> None:
        if self.resets_at <= now:
            self.percent, self.resets_at = 0.0, int(now) + self.minutes * 60


@dataclass(slots=True)
class Token:
    """An access or refresh token. `state` is what its use is answered with when it is not valid any more."""

    account: "Account"
    expires_at: float
    is_revoked: bool = False
    is_used: bool = False


@dataclass(slots=True)
class Account:
    """One ChatGPT account. `slots` says which window the head names first."""

    account_id: str
    user_id: str
    email: str
    plan: str = "plus"
    windows: dict[str, Window] = field(default_factory=lambda: {name: Window(length) for name, length in MINUTES.items()})
    slots: tuple[str, ...] = ("short", "week")
    refreshes: int = 0
    access: dict[str, Token] = field(default_factory=dict, repr=False)
    refresh: dict[str, Token] = field(default_factory=dict, repr=False)

    def use(self, tokens: int) -> None:
        full = TOKENS_FOR_A_WEEK * PLAN_SIZES.get(self.plan, 1)
        for name, share in (("week", 100), ("short", 100 * SHORT_SHARE)):
            window = self.windows[name]
            window.percent = min(100.0, window.percent + share * tokens / full)

    def shown(self, now: float) -> list[Window]:
        for window in self.windows.values():
            window.touch(now)
        return [self.windows[name] for name in self.slots]

    def exhausted_until(self, now: float) -> int | None:
        """When the last full window resets; None while every window has room."""
        return max((window.resets_at for window in self.shown(now) if window.percent >= 100), default=None)

    def headers(self, now: float) -> list[tuple[str, str]]:
        """The rate-limit head: whole percent, as the real one."""
        found = [("x-codex-plan-type", self.plan), ("x-codex-active-limit", "codex"), ("x-codex-limit-name", "codex")]
        for slot, window in zip(("primary", "secondary"), self.shown(now), strict=False):
            found += [
                (f"x-codex-{slot}-used-percent", str(int(window.percent))),
                (f"x-codex-{slot}-window-minutes", str(window.minutes)),
                (f"x-codex-{slot}-reset-at", str(window.resets_at)),
                (f"x-codex-{slot}-reset-after-seconds", str(max(0, window.resets_at - int(now)))),
            ]
        credit = (("has-credits", "false"), ("unlimited", "false"), ("balance", "0"))
        return [*found, *((f"x-codex-credits-{name}", value) for name, value in credit)]

    def usage(self, now: float) -> dict[str, Any]:
        """GET wham/usage."""
        shown: list[dict[str, Any] | None] = [
            {
                "used_percent": int(window.percent),
                "limit_window_seconds": window.minutes * 60,
                "reset_after_seconds": max(0, window.resets_at - int(now)),
                "reset_at": window.resets_at,
            }
            for window in self.shown(now)
        ]
        primary, secondary = [*shown, None, None][:2]
        reached = self.exhausted_until(now) is not None
        return {
            "user_id": self.user_id,
            "account_id": self.account_id,
            "email": self.email,
            "plan_type": self.plan,
            "rate_limit": {
                "allowed": not reached,
                "limit_reached": reached,
                "primary_window": primary,
                "secondary_window": secondary,
            },
            "code_review_rate_limit": None,
            "additional_rate_limits": None,
            "credits": {"has_credits": False, "unlimited": False, "overage_limit_reached": False, "balance": "0"},
            "spend_control": {"reached": False, "individual_limit": None},
            "rate_limit_reached_type": "rate_limit_reached" if reached else None,
            "promo": None,
            "referral_beacon": None,
        }

    def claims(self, now: float, expires_at: float) -> dict[str, Any]:
        return {
            "aud": ["app_EMoamEEZ73f0CkXaXp7hrann"],
            "iss": "https://auth.openai.com",
            "email": self.email,
            "email_verified": True,
            "sub": f"auth0|{self.user_id}",
            "iat": int(now),
            "exp": int(expires_at),
            PROFILE_CLAIM: {"email": self.email, "email_verified": True},
            AUTH_CLAIM: {
                "chatgpt_account_id": self.account_id,
                "chatgpt_plan_type": self.plan,
                "chatgpt_user_id": self.user_id,
                "user_id": self.user_id,
                "chatgpt_account_user_id": f"{self.user_id}__{self.account_id}",
                "chatgpt_account_is_fedramp": False,
                "organizations": [{"id": f"org-{self.account_id}", "is_default": True, "role": "owner", "title": "Personal"}],
            },
        }


MINT_FIELDS = frozenset({"account_id", "user_id", "email", "plan", "expires_in", "short_percent", "week_percent"})
WINDOW_FIELDS = frozenset({"account_id", "short_percent", "week_percent", "short_reset_at", "week_reset_at", "slots"})


class State:
    """Everything; one per process. A restart forgets it, so tokens say themselves whose they are."""

    def __init__(self) -> None:
        self.scripts = Scripts()
        self.count = 0
        """Responses generated, over the process's life."""
        self.requests = 0
        self.sockets = 0
        self._forget_traffic()
        self._forget_accounts()

    def _forget_traffic(self) -> None:
        self.received: deque[Received] = deque()
        self._body_bytes = 0
        self.cache: dict[tuple[str, str], int] = {}
        self.responses: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """id -> (the account or key it belongs to, its total tokens)"""

    def _forget_accounts(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.access: dict[str, Token] = {}
        self.refreshing: dict[str, Token] = {}
        self.refused_keys: set[str] = set()

    def reset(self, *, keep_accounts: bool) -> None:
        self.scripts.reset()
        self._forget_traffic()
        if not keep_accounts:
            self._forget_accounts()

    def remember(self, record: Received) -> None:
        """Keeps what was received, the oldest only as long as there is room."""
        self.requests += 1
        self.received.append(record)
        self._body_bytes += len(record.body)
        while len(self.received) > MOST_RECEIVED or self._body_bytes > MOST_BODY_BYTES:
            self._body_bytes -= len(self.received.popleft().body)

    def remember_response(self, response_id: str, owner: str, total_tokens: int) -> None:
        self.responses[response_id] = (owner, total_tokens)
        if len(self.responses) > MOST_RESPONSES:
            self.responses.popitem(last=False)

    def cached_tokens(self, owner: str, cache_key: Any, size: int) -> int:
        """What this account or key saw of the same conversation before, in whole blocks of 128 tokens."""
        if not isinstance(cache_key, str):
            return 0
        before, self.cache[owner, cache_key] = self.cache.get((owner, cache_key), 0), size // 4
        return before // 128 * 128

    # ------------------------------------------------------------------------------------------------- accounts

    def account(self, account_id: Any) -> Account:
        """Raises Wrong."""
        found = self.accounts.get(account_id) if isinstance(account_id, str) else None
        if found is None:
            raise Wrong(f"no account {account_id!r} was minted")
        return found

    def mint(self, given: dict[str, Any]) -> dict[str, Any]:
        """A new account, or new tokens for a known one; what `auth.json` holds. Raises Wrong."""
        only(given, MINT_FIELDS)
        account_id = given.get("account_id") or f"acct_{secrets.token_hex(8)}"
        account = self.accounts.get(account_id) or Account(
            account_id=account_id,
            user_id=given.get("user_id") or f"user_{secrets.token_hex(8)}",
            email=given.get("email") or f"account{len(self.accounts) + 1}@upstream.example",
        )
        account.plan = given.get("plan", account.plan)
        self.accounts[account_id] = account
        self.set_windows(
            {"account_id": account_id, **{name: given[name] for name in given if name in ("short_percent", "week_percent")}}
        )
        tokens = self.issue(account, number(given, "expires_in", ACCESS_SECONDS))
        return {
            "auth_mode": "chatgpt",
            "OPENAI_API_KEY": None,
            "tokens": {**tokens, "account_id": account_id},
            "last_refresh": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def set_windows(self, given: dict[str, Any]) -> None:
        """Raises Wrong."""
        only(given, WINDOW_FIELDS)
        account = self.account(given.get("account_id"))
        now = time.time()
        for name, window in account.windows.items():
            window.touch(now)
            window.percent = number(given, f"{name}_percent", window.percent)
            window.resets_at = int(number(given, f"{name}_reset_at", window.resets_at))
        slots = given.get("slots", account.slots)
        if not set(slots) <= set(MINUTES) or len(set(slots)) != len(slots):
            raise Wrong("slots lists 'short' and 'week' in the order of the head")
        account.slots = tuple(slots)

    def issue(self, account: Account, expires_in: float) -> dict[str, str]:
        """New tokens beside the old ones. Unsigned: only this upstream judges them, everybody else reads the claims."""
        now = time.time()
        head, claims = encoded({"alg": "none", "typ": "JWT"}), encoded(account.claims(now, now + expires_in))
        access, identity = (f"{head}.{claims}.{secrets.token_urlsafe(24)}" for _ in range(2))
        about = {"account_id": account.account_id, "user_id": account.user_id, "email": account.email, "plan": account.plan}
        refresh = f"rt_{encoded(about)}.{secrets.token_urlsafe(24)}"
        self.access[access] = account.access[access] = Token(account, now + expires_in)
        self.refreshing[refresh] = account.refresh[refresh] = Token(account, float("inf"))
        return {"id_token": identity, "access_token": access, "refresh_token": refresh}

    def find_access(self, access: str) -> Token | None:
        """The token; one of an earlier run is taken for what it says about itself."""
        found = self.access.get(access)
        parts = access.split(".")
        if found is not None or len(parts) != 3:
            return found
        claims = decoded(parts[1])
        auth = claims.get(AUTH_CLAIM)
        if not isinstance(auth, dict) or not isinstance(auth.get("chatgpt_account_id"), str):
            return None
        about = {
            "account_id": auth["chatgpt_account_id"],
            "user_id": auth.get("chatgpt_user_id"),
            "email": claims.get("email"),
            "plan": auth.get("chatgpt_plan_type"),
        }
        token = Token(self._adopted(about), number(claims, "exp", 0.0))
        self.access[access] = token.account.access[access] = token
        return token

    def _adopted(self, about: dict[str, Any]) -> Account:
        account_id = str(about["account_id"])
        made = Account(account_id, str(about.get("user_id")), str(about.get("email")), str(about.get("plan") or "plus"))
        return self.accounts.setdefault(account_id, made)

    def refresh(self, refresh: str) -> tuple[int, dict[str, Any]]:
        """Status and body for a refresh: each refresh token works once."""
        token = self.refreshing.get(refresh)
        if token is None and refresh.startswith("rt_"):
            about = decoded(refresh.removeprefix("rt_").split(".")[0])
            if about.get("account_id"):
                token = Token(self._adopted(about), float("inf"))
                self.refreshing[refresh] = token.account.refresh[refresh] = token
        if token is None or token.is_revoked:
            return refused("refresh_token_invalidated", "Your refresh token has been revoked.")
        if token.is_used:
            return refused("refresh_token_reused", "Your refresh token has already been used.")
        if token.expires_at <= time.time():
            return refused("refresh_token_expired", "Your refresh token has expired.")
        token.is_used = True
        token.account.refreshes += 1
        tokens = self.issue(token.account, ACCESS_SECONDS)
        scope = "openid profile email offline_access"
        return 200, {**tokens, "token_type": "Bearer", "expires_in": int(ACCESS_SECONDS), "scope": scope}

    def expire(self, given: dict[str, Any]) -> None:
        """Raises Wrong."""
        only(given, frozenset({"account_id", "refresh"}))
        account = self.account(given.get("account_id"))
        for token in (account.refresh if given.get("refresh") else account.access).values():
            token.expires_at = 0.0

    def revoke(self, given: dict[str, Any]) -> None:
        """Raises Wrong."""
        only(given, frozenset({"account_id", "token"}))
        if given.get("token") is not None:
            self.refused_keys.add(given["token"])
            return
        account = self.account(given.get("account_id"))
        for token in (*account.access.values(), *account.refresh.values()):
            token.is_revoked = True


def refused(code: str, message: str) -> tuple[int, dict[str, Any]]:
    return 401, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def only(given: dict[str, Any], known: frozenset[str]) -> None:
    """Raises Wrong, naming the fields that are not known."""
    if unknown := sorted(set(given) - known):
        raise Wrong(f"unknown fields: {', '.join(unknown)}; known are: {', '.join(sorted(known))}")


def number(given: Mapping[str, Any], name: str, default: float) -> float:
    """Raises Wrong."""
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"{name} must be a number")
    return float(value)
