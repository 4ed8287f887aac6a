"""The organization's settings: name, zone, sign-in policy, terms of sign-in accounts. For owners. Rules for models are in
`api.model_rules`.

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
from api.fields import Choice, Flag, Moment, Query, Shape, Text, Told, Uuid, iso
from quotas import zones
from routing import terms

TAG = "Settings"


class SettingsShape(Shape):
    id = Uuid()
    slug = Told()
    name = Told()
    timezone = Told()
    unpriced_models = Choice(choices=Organization.UnpricedModels.choices, help_text="What becomes of models without a price.")
    second_factor = Choice(choices=Organization.SecondFactor.choices, help_text="Of whom a second factor is required.")
    developers_see_pool = Flag(help_text="May developers look at the pool's windows and states?")
    has_identity_provider = Flag(help_text="People sign in by OpenID Connect: see `settings/identity-provider`.")
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

    @operation(
        "withdrawSignInTerms",
        tag=TAG,
        summary="Take the acceptance of the terms back",
        description="No sign-in account joins any more; those that are there serve on. A second time changes nothing.",
        scope=api_tokens.SETTINGS_WRITE,
        action=Action.MANAGE_ORGANIZATION,
    )
    def delete(self, call: Call) -> None:
        terms.withdraw(call.member.organization, by=call.by)


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
    return {
        "id": str(row.uuid),
        **{name: getattr(row, name) for name in ("slug", "name", "timezone", "unpriced_models", "second_factor")},
        "developers_see_pool": row.developers_see_pool,
        "has_identity_provider": IdentityProvider.objects.filter(organization=row, is_active=True).exists(),
        "sign_in_terms_accepted_at": iso(row.sign_in_terms_accepted_at),
        "sign_in_terms_accepted_by": row.sign_in_terms_accepted_by.email if row.sign_in_terms_accepted_by is not None else None,
        "created_at": iso(row.created_at),
    }


urls = [
    path("settings", Settings.as_view(), name="api_settings"),
    path("settings/zone-preview", ZoneChange.as_view(), name="api_zone_preview"),
    path("settings/sign-in-policy-preview", PolicyChange.as_view(), name="api_policy_preview"),
    path("settings/sign-in-terms", SignInTerms.as_view(), name="api_accept_terms"),
]
