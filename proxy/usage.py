"""GET /v1/usage: what is left of the key's own plan and limits. Never the pool's (N6)."""

from datetime import UTC, datetime
from typing import Any

from billing import credits
from proxy.errors import Answer, json_answer
from proxy.leaf import Asked, leaf
from quotas.standing import LimitState, PlanState


async def respond(asked: Asked) -> Answer:
    """Credits are decimal strings; a remainder is never below 0."""
    key, organization, standing = asked.caller.key, asked.caller.snapshot.accounts, asked.standing
    value = {
        "key": {"id": key.public_id, "name": key.name},
        "organization": {"slug": organization.slug, "name": organization.name},
        "period": period(standing.plan) if standing is not None else None,
        "limits": [limit(state) for state in standing.limits] if standing is not None else [],
    }
    return json_answer(200, value, request_id=asked.request_id)


def period(plan: PlanState) -> dict[str, Any]:
    """The plan period that the key draws on."""
    return {
        "plan": plan.plan,
        "start": _moment(plan.starts_at),
        "end": _moment(plan.ends_at),
        "quota": credits.text(plan.quota),
        "used": credits.text(plan.used),
        "held": credits.text(plan.held),
        "remaining": credits.text(plan.remaining),
    }


def limit(state: LimitState) -> dict[str, Any]:
    def amount(value: int) -> str | int:
        return credits.text(value) if state.metric == "credits" else value

    return {
        "scope": state.scope,
        "scope_name": state.scope_name,
        "metric": state.metric,
        "window": state.window,
        "limit": amount(state.limit),
        "used": amount(state.used),
        "held": amount(state.held),
        "remaining": amount(state.remaining),
        "resets_at": state.resets_at,
    }


def _moment(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().replace("+00:00", "Z")


app = leaf(respond)
