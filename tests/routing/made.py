"""Pools and accounts for the tests of routing: as snapshots alone, or as rows of a tenant of their own."""

import base64
import itertools
import json
import os
from typing import Any

from accounts import organizations
from accounts.models import Organization
from routing.snapshots import AccountSnapshot, PoolSnapshot

_numbers = itertools.count(1_000_000 + (os.getpid() % 10_000) * 100_000)


def number() -> int:
    """An id that no other test of this run uses, so that Redis keys of tests do not meet."""
    return next(_numbers)


def account(**fields: Any) -> AccountSnapshot:
    """An account that serves; with an id of its own unless `account_id` says which."""
    account_id = fields.pop("account_id", None) or number()
    values: dict[str, Any] = {
        "account_id": account_id,
        "uuid": f"account-{account_id}",
        "kind": "chatgpt",
        "label": f"Account {account_id}",
        "base_url": "http://127.0.0.1:9",
        "weight": 1000,
        "concurrency_cap": None,
        "floor_percent": 0,
        "priority": 0,
        "models": None,
        "status": "active",
        "chatgpt_account_id": None,
    }
    return AccountSnapshot(**{**values, **fields})


def pool(*accounts: AccountSnapshot, **fields: Any) -> PoolSnapshot:
    """An organization's pool of these accounts."""
    pool_id = number()
    values: dict[str, Any] = {
        "pool_id": pool_id,
        "uuid": f"pool-{pool_id}",
        "name": "Main",
        "organization_id": pool_id,
        "tenant_id": pool_id,
        "strategy": "capacity_weighted",
        "team_ids": frozenset(),
        "accounts": accounts,
    }
    return PoolSnapshot(**{**values, **fields})


def organization() -> Organization:
    """A tenant in the database."""
    return organizations.create(f"Routing {number()}", by=None)


def jwt(claims: dict[str, Any]) -> str:
    """An unsigned token with a signature part of its own, as long as a real one's claims are read and not verified."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part(claims)}.{number():020d}"
