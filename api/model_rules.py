"""Rules for models: which stand in for which, and which nobody uses. For owners."""

from typing import Any
from uuid import UUID

from django.http import Http404
from django.urls import path

from accounts import api_tokens
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import ListOf, Shape, Text, Told, Uuid
from quotas import model_rules
from quotas.models import Limit
from routing import fallbacks

TAG = "Models"


class FallbackShape(Shape):
    """Which models may serve requests for a model, in this order, where it cannot be served itself."""

    model = Told()
    fallbacks = ListOf(child=Told())


class FallbacksShape(Shape):
    rules = FallbackShape(many=True)


class FallbackBody(Shape):
    model = Text(max_length=120)
    fallbacks = ListOf(child=Text(max_length=120), max_length=20, help_text="Empty: the rule goes.")


class BlockShape(Shape):
    """Models that nobody in the organization uses: a limit of no request."""

    id = Uuid()
    models = ListOf(child=Told())


class BlocksShape(Shape):
    rules = BlockShape(many=True)


class BlockBody(Shape):
    models = ListOf(child=Text(max_length=120), min_length=1, max_length=50)


class Fallbacks(Resource):
    @operation(
        "listFallbacks",
        tag=TAG,
        summary="List rules for models that stand in for others",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=FallbacksShape,
    )
    def get(self, call: Call) -> Any:
        return _fallbacks(call)

    @operation(
        "setFallback",
        tag=TAG,
        summary="Say which models may stand in for one",
        description="From the next request on. A model without a price is passed over.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=FallbackBody,
        answers=FallbacksShape,
        examples={"A smaller one": {"model": "gpt-5.5", "fallbacks": ["gpt-5.4"]}},
    )
    def put(self, call: Call) -> Any:
        fallbacks.set_fallbacks(call.member.organization, call.body["model"], call.body["fallbacks"], by=call.by)
        return _fallbacks(call)


class Blocks(Resource):
    @operation(
        "listBlockedModels",
        tag=TAG,
        summary="List models that nobody uses",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=BlocksShape,
    )
    def get(self, call: Call) -> Any:
        return _blocks(call)

    @operation(
        "blockModels",
        tag=TAG,
        summary="Let nobody use some models",
        description="Within a minute. Named as the rate card names them, or by another name of theirs.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=BlockBody,
        answers=BlocksShape,
        examples={"One": {"models": ["gpt-5.5"]}},
    )
    def post(self, call: Call) -> Any:
        model_rules.block(call.member.organization, call.body["models"], by=call.by)
        return _blocks(call)


class OneBlock(Resource):
    @operation(
        "unblockModels",
        tag=TAG,
        summary="Let models be used again",
        description="From the next request on.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        found = call.owned(Limit.objects.all(), uuid)
        rule = next((one for one in model_rules.blocked(call.member.organization) if one.pk == found.pk), None)
        if rule is None:
            # A limit, but none of these rules.
            raise Http404
        model_rules.unblock(rule, by=call.by)


def _fallbacks(call: Call) -> dict[str, Any]:
    found = fallbacks.of(call.member.organization)
    return {"rules": [{"model": model, "fallbacks": chain} for model, chain in found.items()]}


def _blocks(call: Call) -> dict[str, Any]:
    rows = model_rules.blocked(call.member.organization)
    rules = [{"id": str(row.uuid), "models": list(row.model_filter.model_names)} for row in rows if row.model_filter is not None]
    return {"rules": rules}


urls = [
    path("fallbacks", Fallbacks.as_view(), name="api_fallbacks"),
    path("blocked-models", Blocks.as_view(), name="api_blocked_models"),
    path("blocked-models/<uuid:uuid>", OneBlock.as_view(), name="api_blocked_model"),
]
