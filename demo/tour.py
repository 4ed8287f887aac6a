"""What `manage.py demo` shows once it runs: one real request through the gateway, where to look, with which login."""

import json
from pathlib import Path
from typing import Any

import httpx

from demo import seed

PROMPT = "Say in five words what a weir does."


def first_developer(organizations: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    for organization in organizations:
        for member in organization["members"]:
            if member["role"] == "developer" and member["key"]:
                return organization, member
    raise LookupError("the seed made no developer with a key")


def send(base_url: str, key: str) -> dict[str, Any]:
    """One streamed request; the terminal event's response object. Raises RuntimeError with what was answered instead."""
    body = {"model": "gpt-5.5", "stream": True, "store": False, "input": PROMPT}
    with httpx.stream(
        "POST", f"{base_url}/v1/responses", json=body, headers={"authorization": f"Bearer {key}"}, timeout=30
    ) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"the first request was answered {answer.status_code}: {answer.read().decode()[:500]}")
        for line in answer.iter_lines():
            if line.startswith("data: ") and '"response.completed"' in line:
                return dict(json.loads(line.removeprefix("data: "))["response"])
    raise RuntimeError("the first request's stream had no response.completed")


def show(*, base_url: str, upstream_url: str, organizations: list[dict[str, Any]], var: Path) -> None:
    """Sends the request and prints the tour."""
    organization, developer = first_developer(organizations)
    response = send(base_url, developer["key"])
    usage = response["usage"]
    text = "".join(part["text"] for item in response["output"] for part in item.get("content", []) if "text" in part)
    print(f"\nOne request through the gateway, as {developer['email']} of {organization['name']}:")
    print(f"    {response['model']} answered {text!r}")
    print(f"    {usage['input_tokens']} input tokens, {usage['output_tokens']} output tokens ({response['id']})")
    print(f"    its price is on {base_url}/o/{organization['slug']}/overview")
    print("\nWhere to look, and with which login:")
    for one in organizations:
        print(f"  {one['name']}: {base_url}/o/{one['slug']}/key  and  /o/{one['slug']}/overview")
        for member in one["members"]:
            print(f"    {member['role']:<10} {member['email']:<34} {member['password']}")
    email, password = seed.operator_login(var)
    print(f"  Operator: {base_url}/admin/\n    {'superuser':<10} {email:<34} {password}")
    print(f"\nKeys of every member: {var / 'demo.json'} (only you can read it)")
    print(f"Scripted upstream: {upstream_url}/control/health", flush=True)
