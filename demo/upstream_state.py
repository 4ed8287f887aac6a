"""What the scripted upstream remembers: accounts and their windows, tokens, scripted answers, received requests."""

import base64
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

CLAIMS = "https://api.openai.com/auth"
SHORT_MINUTES, WEEK_MINUTES = 300, 10080


class Wrong(Exception):
    """A control request that cannot be meant."""


def jwt(claims: dict[str, Any]) -> str:
    """An unsigned token: clients and gateways read its claims, only this upstream verifies it, by having made it."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}.{secrets.token_urlsafe(24)}"


@dataclass
class Account:
    """One ChatGPT account: who, which plan, its two windows in percent, the credits' worth of use that fills them."""

    account_id: str
    user_id: str
    email: str
    plan: str = "plus"
    short_percent: float = 0.0
    week_percent: float = 0.0
    short_reset_at: int = 0
    week_reset_at: int = 0
    tokens_for_full_week: int = 20_000_000
    access: str = ""
    refresh: str = ""
    access_expires_at: float = 0.0
    is_revoked: bool = False
    refreshes: int = 0

    def touch(self, now: float) -> None:
        if self.short_reset_at <= now:
            self.short_percent, self.short_reset_at = 0.0, int(now) + SHORT_MINUTES * 60
        if self.week_reset_at <= now:
            self.week_percent, self.week_reset_at = 0.0, int(now) + WEEK_MINUTES * 60

    def use(self, tokens: int) -> None:
        self.week_percent = min(100.0, self.week_percent + 100 * tokens / self.tokens_for_full_week)
        self.short_percent = min(100.0, self.short_percent + 600 * tokens / self.tokens_for_full_week)

    def headers(self, now: float) -> list[tuple[str, str]]:
        self.touch(now)
        return [
            ("x-codex-plan-type", self.plan),
            ("x-codex-active-limit", "codex"),
            ("x-codex-primary-used-percent", str(int(self.short_percent))),
            ("x-codex-primary-window-minutes", str(SHORT_MINUTES)),
            ("x-codex-primary-reset-at", str(self.short_reset_at)),
            ("x-codex-secondary-used-percent", str(int(self.week_percent))),
            ("x-codex-secondary-window-minutes", str(WEEK_MINUTES)),
            ("x-codex-secondary-reset-at", str(self.week_reset_at)),
            ("x-codex-credits-has-credits", "false"),
            ("x-codex-credits-unlimited", "false"),
            ("x-codex-limit-name", "codex"),
        ]

    def usage(self, now: float) -> dict[str, Any]:
        """GET wham/usage."""
        self.touch(now)

        def window(percent: float, minutes: int, reset_at: int) -> dict[str, Any]:
            seconds = minutes * 60
            return {
                "used_percent": int(percent),
                "limit_window_seconds": seconds,
                "reset_after_seconds": max(0, reset_at - int(now)),
                "reset_at": reset_at,
            }

        reached = self.short_percent >= 100 or self.week_percent >= 100
        return {
            "user_id": self.user_id,
            "account_id": self.account_id,
            "email": self.email,
            "plan_type": self.plan,
            "rate_limit": {
                "allowed": not reached,
                "limit_reached": reached,
                "primary_window": window(self.short_percent, SHORT_MINUTES, self.short_reset_at),
                "secondary_window": window(self.week_percent, WEEK_MINUTES, self.week_reset_at),
            },
            "additional_rate_limits": None,
            "credits": {"has_credits": False, "unlimited": False, "balance": "0"},
            "spend_control": {"reached": False},
            "rate_limit_reached_type": None,
        }


ANSWER_FIELDS = {
    "status": int,
    "body": object,
    "headers": dict,
    "delay": (int, float),
    "event_delay": (int, float),
    "cut_after_events": int,
    "cut_after_bytes": int,
    "silence": str,
    "events": list,
    "raw": str,
    "usage": dict,
    "no_usage": bool,
    "deltas": int,
    "chunk": int,
    "terminal": str,
    "model": str,
    "tier": str,
}


@dataclass
class Script:
    """Queued answers for requests that match."""

    answers: list[dict[str, Any]]
    match: dict[str, str] = field(default_factory=dict)

    def fits(self, seen: dict[str, str]) -> bool:
        return bool(self.answers) and all(seen.get(name) == value for name, value in self.match.items())


class State:
    """Everything; one per process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, keep_accounts: bool = False) -> None:
        self.scripts: list[Script] = []
        self.received: list[dict[str, Any]] = []
        self.count = getattr(self, "count", 0)
        self.cache: dict[tuple[str, str], int] = {}
        if not keep_accounts or not hasattr(self, "accounts"):
            self.accounts: dict[str, Account] = {}
            self.by_access: dict[str, Account] = {}
            self.by_refresh: dict[str, Account] = {}
            self.used_refresh: set[str] = set()
            self.refused_keys: set[str] = set()

    def add_script(self, given: dict[str, Any]) -> int:
        unknown = set(given) - {"answers", "match", "repeat"}
        if unknown:
            raise Wrong(f"unknown fields: {', '.join(sorted(unknown))}")
        answers = given.get("answers")
        if not isinstance(answers, list) or not answers:
            raise Wrong("answers must be a list that is not empty")
        for answer in answers:
            for name, value in answer.items():
                if name not in ANSWER_FIELDS:
                    raise Wrong(f"unknown field of an answer: {name}")
                if not isinstance(value, ANSWER_FIELDS[name]):  # type: ignore[arg-type]
                    raise Wrong(f"{name} has the wrong type")
            if answer.get("silence", "head") not in ("head", "body"):
                raise Wrong("silence is 'head' or 'body'")
        match = given.get("match") or {}
        if wrong := set(match) - {"account", "path", "model", "token"}:
            raise Wrong(f"unknown fields of match: {', '.join(sorted(wrong))}")
        self.scripts.append(Script(list(answers) * int(given.get("repeat", 1)), match))
        return len(self.scripts)

    def next_answer(self, seen: dict[str, str]) -> dict[str, Any]:
        for script in self.scripts:
            if script.fits(seen):
                return dict(script.answers.pop(0))
        return {}

    def mint(self, given: dict[str, Any]) -> dict[str, Any]:
        """A new account, or new tokens for a known one; what `auth.json` holds."""
        names = {"account_id", "user_id", "email", "plan", "expires_in", "short_percent", "week_percent"}
        if unknown := set(given) - names:
            raise Wrong(f"unknown fields: {', '.join(sorted(unknown))}")
        number = len(self.accounts) + 1
        account_id = given.get("account_id") or f"acct_{secrets.token_hex(8)}"
        account = self.accounts.get(account_id) or Account(
            account_id=account_id,
            user_id=given.get("user_id") or f"user_{secrets.token_hex(8)}",
            email=given.get("email") or f"account{number}@upstream.example",
        )
        account.plan = given.get("plan", account.plan)
        account.touch(time.time())
        account.short_percent = float(given.get("short_percent", account.short_percent))
        account.week_percent = float(given.get("week_percent", account.week_percent))
        self.accounts[account_id] = account
        tokens = self.issue(account, float(given.get("expires_in", 864_000)))
        return {
            "auth_mode": "chatgpt",
            "OPENAI_API_KEY": None,
            "tokens": {**tokens, "account_id": account_id},
            "last_refresh": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def issue(self, account: Account, expires_in: float) -> dict[str, str]:
        now = time.time()
        claims = {
            "aud": ["app_EMoamEEZ73f0CkXaXp7hrann"],
            "iss": "https://auth.openai.com",
            "email": account.email,
            "email_verified": True,
            "sub": f"auth0|{account.user_id}",
            "iat": int(now),
            "exp": int(now + expires_in),
            CLAIMS: {
                "chatgpt_account_id": account.account_id,
                "chatgpt_plan_type": account.plan,
                "chatgpt_user_id": account.user_id,
                "user_id": account.user_id,
                "organizations": [],
            },
        }
        account.access, account.refresh = jwt(claims), f"rt_{secrets.token_urlsafe(32)}"
        account.access_expires_at = now + expires_in
        account.is_revoked = False
        self.by_access[account.access] = account
        self.by_refresh[account.refresh] = account
        return {"id_token": jwt(claims), "access_token": account.access, "refresh_token": account.refresh}

    def refresh(self, token: str, expires_in: float) -> tuple[int, dict[str, Any]]:
        """POST /oauth/token: each refresh token works once."""
        if token in self.used_refresh:
            return 401, {"error": {"message": "Already used.", "type": "invalid_request_error", "code": "refresh_token_reused"}}
        account = self.by_refresh.get(token)
        if account is None or account.is_revoked:
            return 401, {"error": {"message": "Revoked.", "type": "invalid_request_error", "code": "refresh_token_invalidated"}}
        self.used_refresh.add(token)
        account.refreshes += 1
        tokens = self.issue(account, expires_in)
        return 200, {
            **tokens,
            "token_type": "Bearer",
            "expires_in": int(expires_in),
            "scope": "openid profile email offline_access",
        }
