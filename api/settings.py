"""The organization's settings: name, zone, rules for models, sign-in policy, terms of sign-in accounts. For owners.

What belongs together is one transaction: of several settings in one call, all are set or none.
"""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.urls import path

from accounts import api_tokens, organizations, policies
from accounts.models import IdentityProvider, Organization
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import Choice, Flag, ListOf, Moment, Query, Shape, Text, Told, Uuid, iso
from quotas import zones
from routing import fallbacks, terms

TAG = "Settings"


class ProviderShape(Shape):
    """The organization's OpenID Connect provider, without its secret."""

    id = Uuid()
    name = Told()
    issuer = Told()
    client_id = Told()
    email_domains = ListOf(child=Told())
    is_active = Flag()
    is_required = Flag(help_text="Members of its domains sign in there only.")


class SettingsShape(Shape):
    id = Uuid()
    slug = Told()
    name = Told()
    timezone = Told()
    unpriced_models = Choice(choices=Organization.UnpricedModels.choices, help_text="What becomes of models without a price.")
    second_factor = Choice(choices=Organization.SecondFactor.choices, help_text="Of whom a second factor is required.")
    developers_see_pool = Flag(help_text="May developers look at the pool's windows and states?")
    identity_provider = ProviderShape(allow_null=True)
    sign_in_terms_accepted_at = Moment(allow_null=True)
    sign_in_terms_accepted_by = Told(allow_null=True)
    created_at = Moment()


class SettingsChange(Shape):
    """What is given is set: all of it, or nothing."""

    name = Text(max_length=120, required=False)
    timezone = Text(max_length=64, required=False, help_text="A name of the tz database, such as Europe/Berlin.")
    unpriced_models = Choice(choices=Organization.UnpricedModels.choices, required=False)
    second_factor = Choice(choices=Organization.SecondFactor.choices, required=False)
    developers_see_pool = Flag(required=False)


class ZoneQuery(Query):
    timezone = Text(max_length=64)


class MovedShape(Shape):
    """A plan period that runs, and when it would end."""

    member = Told(allow_null=True, help_text="Whose seat; null: the organization's plan.")
    ends_at_now = Moment()
    ends_at_then = Moment()


class ZonePreview(Shape):
    periods = MovedShape(many=True)


class PolicyQuery(Query):
    policy = Choice(choices=Organization.SecondFactor.choices)


class LackingShape(Shape):
    member_id = Uuid()
    member = Told()
    role = Told()


class PolicyPreview(Shape):
    """Of whom the policy would require a factor that they do not have."""

    lacking = LackingShape(many=True)


class AcceptedTerms(Shape):
    text = Told()
    accepted_at = Moment()


class AcceptBody(Shape):
    accept = Choice(choices=["I accept these terms for the organization"])


class FallbackShape(Shape):
    """Which models may serve requests for a model, in this order, where it cannot be served itself."""

    model = Told()
    fallbacks = ListOf(child=Told())


class FallbacksShape(Shape):
    rules = FallbackShape(many=True)


class FallbackBody(Shape):
    model = Text(max_length=120)
    fallbacks = ListOf(child=Text(max_length=120), max_length=20, help_text="Empty: the rule goes.")


class Settings(Resource):
    @operation(
        "getSettings",
        tag=TAG,
        summary="Get the organization's settings",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        answers=SettingsShape,
    )
    def get(self, call: Call) -> Any:
        return _told(call)

    @operation(
        "changeSettings",
        tag=TAG,
        summary="Change the organization's settings",
        description="They hold on the next request. A zone moves the ends of the running periods: see its preview.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=SettingsChange,
        answers=SettingsShape,
        examples={"Zone": {"timezone": "Europe/Berlin"}, "Second factor of everyone": {"second_factor": "everyone"}},
    )
    def patch(self, call: Call) -> Any:
        with transaction.atomic():
            _set(call, call.member.organization, call.body)
        return _told(call)


class ZoneChange(Resource):
    @operation(
        "previewZone",
        tag=TAG,
        summary="Preview another zone",
        description="How the ends of the running periods would move. Nothing is changed.",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        query=ZoneQuery,
        answers=ZonePreview,
    )
    def get(self, call: Call) -> Any:
        moved = zones.preview(call.member.organization, call.query["timezone"], now=call.now)
        return {
            "periods": [
                {"member": one.member or None, "ends_at_now": iso(one.ended_at), "ends_at_then": iso(one.ends_at)} for one in moved
            ]
        }


class PolicyChange(Resource):
    @operation(
        "previewSignInPolicy",
        tag=TAG,
        summary="Preview a sign-in policy",
        description="Who would have to set up a second factor at their next page.",
        scope=api_tokens.SETTINGS_READ,
        action=Action.MANAGE_ORGANIZATION,
        query=PolicyQuery,
        answers=PolicyPreview,
    )
    def get(self, call: Call) -> Any:
        rows = policies.lacking(call.member.organization, call.query["policy"])
        return {"lacking": [{"member_id": str(row.uuid), "member": str(row), "role": row.role} for row in rows]}


class SignInTerms(Resource):
    @operation(
        "acceptSignInTerms",
        tag=TAG,
        summary="Accept the terms for pooling sign-in accounts",
        description="For the organization, on the record. They are read at `sign-in-terms`. A second time changes nothing.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
        body=AcceptBody,
        answers=AcceptedTerms,
    )
    def post(self, call: Call) -> Any:
        terms.demand(call.member.organization, accepted=True, by=call.by, now=call.now)
        accepted_at = Organization.objects.values_list("sign_in_terms_accepted_at", flat=True).get(pk=call.member.organization_id)
        return {"text": terms.SIGN_IN_TERMS, "accepted_at": iso(accepted_at)}


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


def _set(call: Call, organization: Organization, asked: Mapping[str, Any]) -> None:
    """In a transaction. Raises what the settings raise."""
    if "name" in asked:
        organizations.rename(organization, asked["name"], by=call.by)
    if "unpriced_models" in asked:
        organizations.set_unpriced_models(organization, asked["unpriced_models"], by=call.by)
    if "developers_see_pool" in asked:
        organizations.show_pool_to_developers(organization, asked["developers_see_pool"], by=call.by)
    if "second_factor" in asked:
        policies.set_second_factor(organization, asked["second_factor"], by=call.by)
    if "timezone" in asked:
        # Last: it locks the ledger.
        zones.change(organization, asked["timezone"], by=call.by, now=call.now)


def _told(call: Call) -> dict[str, Any]:
    row = Organization.objects.select_related("sign_in_terms_accepted_by").get(pk=call.member.organization_id)
    provider = IdentityProvider.objects.defer("client_secret").filter(organization=row).first()
    return {
        "id": str(row.uuid),
        **{name: getattr(row, name) for name in ("slug", "name", "timezone", "unpriced_models", "second_factor")},
        "developers_see_pool": row.developers_see_pool,
        "identity_provider": _provider(provider) if provider is not None else None,
        "sign_in_terms_accepted_at": iso(row.sign_in_terms_accepted_at),
        "sign_in_terms_accepted_by": row.sign_in_terms_accepted_by.email if row.sign_in_terms_accepted_by is not None else None,
        "created_at": iso(row.created_at),
    }


def _provider(row: IdentityProvider) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        **{name: getattr(row, name) for name in ("name", "issuer", "client_id", "email_domains", "is_active", "is_required")},
    }


def _fallbacks(call: Call) -> dict[str, Any]:
    found = fallbacks.of(call.member.organization)
    return {"rules": [{"model": model, "fallbacks": chain} for model, chain in found.items()]}


urls = [
    path("settings", Settings.as_view(), name="api_settings"),
    path("settings/zone-preview", ZoneChange.as_view(), name="api_zone_preview"),
    path("settings/sign-in-policy-preview", PolicyChange.as_view(), name="api_policy_preview"),
    path("settings/sign-in-terms", SignInTerms.as_view(), name="api_accept_terms"),
    path("settings/fallbacks", Fallbacks.as_view(), name="api_fallbacks"),
]
