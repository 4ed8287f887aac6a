"""Calls of the API as a client makes them: a token in the header, JSON in the body; every answer is searched for secrets."""

import json
import re
from typing import Any

from django.test import Client

from accounts import api_tokens
from accounts.models import Member
from config.clock import utc_now
from tests import secrets

SHOWN_ONCE = re.compile(
    r"(keys|keys/[^/]+/rotate|members|invitations|tokens|webhook-endpoints|webhook-endpoints/[^/]+/secret"
    r"|accounts/[^/]+/withdrawal-link|exports/[^/]+/link)"
)
"""Where a POST answers with a secret, this one time; the same call replayed must not."""


def token_of(member: Member, **fields: Any) -> str:
    made = api_tokens.issue(member, name="test", by=None, now=utc_now(), **fields)
    return secrets.register(made.secret, "API token")


class Caller:
    """One token."""

    def __init__(self, member: Member, **fields: Any) -> None:
        self.member = member
        self.token = token_of(member, **fields)

    def __call__(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, raw: bytes | None = None, **query: Any
    ) -> Any:
        """`body` is sent as JSON, `raw` as it is, `key` as Idempotency-Key."""
        headers = {"authorization": f"Bearer {self.token}", **({"idempotency-key": key} if key is not None else {})}
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else b""
        answer = Client(raise_request_exception=False).generic(
            method, f"/api/v1/{path}", data, content_type="application/json", headers=headers, query_params=query
        )
        is_issued = method == "POST" and answer.status_code < 300 and SHOWN_ONCE.fullmatch(path)
        if not is_issued or "Idempotency-Replayed" in answer:
            secrets.record_answer(f"{method} /api/v1/{path}", answer.content)
        return answer

    def get(self, path: str, **query: Any) -> Any:
        return self("GET", path, **query)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        return self("POST", path, body, key=key)

    def patch(self, path: str, body: Any) -> Any:
        return self("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self("DELETE", path)


def code(answer: Any) -> tuple[int, str]:
    """Status and the code of the one form of errors."""
    error = answer.json()["error"]
    assert {"code", "message"} <= set(error)
    return answer.status_code, error["code"]
