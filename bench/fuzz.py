"""Fuzzing the API: every operation of its schema against a server of its own, with an owner's token of a tenant made for it.

What is asked comes from the schema (what fits it and what does not), and so does what may be answered. Nobody outside is called:
the upstreams are the scripted one, mail goes nowhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench import fuzz_world
from bench.fuzz_world import Failed, Tenant
from config import scope

__all__ = ["Failed", "run"]

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
    "ignored_auth",
)
"""Not `positive_data_acceptance`: what fits the schema may still be refused by a rule of the domain, in a sentence (400)."""
NOWHERE = "00000000-0000-4000-8000-000000000000"


@dataclass
class Found:
    """What came of one operation."""

    label: str
    calls: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """By title: the first one's message."""

    @property
    def line(self) -> str:
        told = " ".join(f"{status}x{count}" for status, count in sorted(self.statuses.items()))
        return f"{'FAILED' if self.failures else 'ok':6}  {self.label:55}  {self.calls:5} calls  {told}"


def run(*, examples: int, seed: int, only: str = "", has_edges: bool = True, say: Callable[[str], Any]) -> int:
    """Fuzzes every operation, or those whose id matches `only`; says a line for each and what was found; returns how many findings.

    `examples`: random calls of each; `has_edges`: also each edge of what the schema allows, some 40 of an operation more.
    """
    with scope.everything():
        tenant = fuzz_world.seed()
    with fuzz_world.server() as url:
        _add_what_the_server_makes(url, tenant)
        found = list(_operations(url, tenant, examples=examples, seed=seed, only=only, has_edges=has_edges))
        last = httpx.get(f"{url}/api/v1/me", headers=tenant.headers, timeout=30)
    if last.status_code != 200:
        # Then nothing after that was a call of anybody's.
        found.append(Found("the run", failures={"The token ended": last.text}))
    for one in found:
        say(one.line)
    for one in found:
        for title, message in one.failures.items():
            say(f"\n{one.label}: {title}\n{message}")
    findings = sum(len(one.failures) for one in found)
    calls = sum(one.calls for one in found)
    say(f"\n{len(found)} operations, {calls} calls, {findings} findings (seed {seed}).")
    return findings


def _add_what_the_server_makes(url: str, tenant: Tenant) -> None:
    for path, body in (
        ("tokens", {"name": "other", "scopes": ["status:read"]}),
        ("exports", {"kind": "members"}),
        ("members", {"email": f"awaited@{tenant.organization.slug}.example"}),
    ):
        httpx.post(f"{url}/api/v1/{path}", json=body, headers=tenant.headers, timeout=30).raise_for_status()


def _operations(url: str, tenant: Tenant, *, examples: int, seed: int, only: str, has_edges: bool) -> Iterator[Found]:
    """What came of each, in the order they were called."""
    import schemathesis
    from schemathesis.engine import events, from_schema

    raw = httpx.get(f"{url}/api/v1/schema", timeout=30).json()
    config = schemathesis.Config.from_dict(
        {
            "seed": seed,
            "suppress-health-check": ["all"],
            "base-url": url,
            "headers": tenant.headers,
            "continue-on-failure": True,
            "request-timeout": 30,
            "max-redirects": 0,
            "workers": 1,
            "generation": {"max-examples": examples, "no-shrink": True, "database": "none"},
            "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": has_edges}, "examples": {"enabled": True}},
            "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
        }
    )
    schema = schemathesis.openapi.from_dict(raw, config=config)

    def spare(context: Any, case: Any, kwargs: Any) -> None:
        if case.path_parameters and tenant.spared & set(map(str, case.path_parameters.values())):
            case.path_parameters = dict.fromkeys(case.path_parameters, NOWHERE)

    found: dict[str, Found] = {}
    schemathesis.hook("before_call")(spare)
    try:
        for event in from_schema(schema.include(operation_id_regex=only) if only else schema).execute():
            if isinstance(event, events.ScenarioFinished):
                _add(found.setdefault(event.recorder.label, Found(event.recorder.label)), event.recorder)
            elif isinstance(event, events.NonFatalError | events.FatalError):
                label = getattr(event, "label", "the run")
                error = getattr(event, "value", None) or getattr(event, "exception", None)
                found.setdefault(label, Found(label)).failures.setdefault(type(error).__name__, str(error)[:2000])
    finally:
        schemathesis.hooks.unregister(spare)
    yield from found.values()


def _add(one: Found, recorder: Any) -> None:
    for interaction in recorder.interactions.values():
        one.calls += 1
        if interaction.response is not None:
            status = interaction.response.status_code
            one.statuses[status] = one.statuses.get(status, 0) + 1
    for checks in recorder.checks.values():
        for check in checks:
            if check.failure_info is not None:
                failure = check.failure_info.failure
                told = f"{failure.message}\n{check.failure_info.code_sample}"[:3000]
                one.failures.setdefault(f"{check.name}: {failure.title}", told)
