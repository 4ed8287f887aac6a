"""What `manage.py demo` shows once it runs: one real request through the gateway, where to look, with which login."""

import json
import time
from pathlib import Path
from typing import Any

import httpx

from billing import credits
from billing.models import UsageRecord
from demo import seed
from routing.models import PoolAccount

LOGGED_SECONDS = 15.0
"""Within which the ledger process has moved the request into the usage log."""
PROMPT = "Say in five words what a weir does."


class NotShown(Exception):
    """The first request did not go as it must; the text says how it went."""


def first_developer(organizations: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    for organization in organizations:
        for member in organization["members"]:
            if member["role"] == "developer" and member["key"]:
                return organization, member
    raise NotShown("the seed made no developer with a key")


def send(base_url: str, key: str) -> tuple[str, str]:
    """One streamed request: its id and the text of the answer. Raises NotShown with what was answered instead."""
    body = {"model": "gpt-5.5", "stream": True, "store": False, "input": PROMPT}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream("POST", f"{base_url}/v1/responses", json=body, headers=headers, timeout=30) as answer:
        if answer.status_code != 200:
            raise NotShown(f"the first request was answered {answer.status_code}: {answer.read().decode()[:500]}")
        for line in answer.iter_lines():
            if line.startswith("data: ") and '"response.completed"' in line:
                response = json.loads(line.removeprefix("data: "))["response"]
                parts = [part for item in response["output"] for part in item.get("content", [])]
                return answer.headers["x-weir-request-id"], "".join(part.get("text", "") for part in parts)
    raise NotShown("the first request's stream had no response.completed")


def logged(request_id: str) -> UsageRecord:
    """The request's line of the usage log, once the ledger has written it. Raises NotShown if it does not."""
    deadline = time.monotonic() + LOGGED_SECONDS
    while time.monotonic() < deadline:
        record = UsageRecord.objects.filter(request_id=request_id, part=0).first()
        if record:
            return record
        time.sleep(0.05)
    raise NotShown(f"the ledger did not write {request_id} into the usage log within {LOGGED_SECONDS:.0f} s")


def show(*, base_url: str, upstream_url: str, organizations: list[dict[str, Any]], var: Path) -> None:
    """Sends the request and prints the tour. Raises NotShown."""
    organization, developer = first_developer(organizations)
    request_id, text = send(base_url, developer["key"])
    record = logged(request_id)
    account = PoolAccount.objects.get(pk=record.account_id or 0)
    print(f"\nOne request went through the gateway, with the key of {developer['email']} of {organization['name']}:")
    print(f"    asked     {PROMPT}")
    print(f"    answered  {text}")
    print(f"    by        {record.model_served}, from the pool's account {account.label!r}")
    uncached = record.input_tokens + record.cache_write_tokens
    print(f"    tokens    {uncached} input, {record.cached_input_tokens} cached input, {record.output_tokens} output")
    print(f"    price     {credits.text(record.credits)} credits, in the usage log as {request_id}")
    print("\nWhere to look, and with which login:")
    for one in organizations:
        print(f"  {one['name']}: {base_url}/o/{one['slug']}/key  and  /o/{one['slug']}/overview")
        for member in one["members"]:
            print(f"    {member['role']:<10} {member['email']:<34} {member['password']}")
    email, password = seed.operator_login(var)
    print(f"  Operator: {base_url}/admin/\n    {'superuser':<10} {email:<34} {password}")
    print(f"\nKeys of every member: {var / 'demo.json'} (only you can read it)")
    print(f"Scripted upstream: {upstream_url}/control/health", flush=True)
