"""How an account joins the pool: by an API key, by files, by a person's sign-in in a browser or with a code on any device.

Credentials go in and never out: an API key, a file or the address that a sign-in ended at is shown to its upstream and sealed.
Joining asks an upstream, so no call of this module is one transaction, and none takes an Idempotency-Key: the same credential
again renews the account that it made.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.urls import path

from accounts import api_tokens
from accounts.permissions import Action
from api import accounts
from api.accounts import AccountShape, PlaceBody
from api.base import Call, Resource, operation
from api.fields import Choice, Flag, ListOf, Moment, Shape, Text, Told, Uuid, Whole, iso
from routing import capacity, device, joining, oauth, terms, upkeep
from routing.errors import FlowOver
from routing.joining import Joined, Outcome
from routing.models import PoolAccount

JOINING = "Joining"
PLANS = tuple(capacity.DATED[-1].by_plan)
BROWSER, DEVICE = "browser", "device"
KEYS = [value for value in PoolAccount.Kind.values if value != PoolAccount.Kind.CHATGPT]


class KeyBody(PlaceBody):
    """An API key, or what opens a compatible endpoint. The key is shown to its upstream, sealed, and never told again."""

    kind = Choice(choices=KEYS)
    label = Text(max_length=80)  # type: ignore[assignment]
    api_key = Text(write_only=True, help_text="For an endpoint that wants none: EMPTY.")
    base_url = Text(max_length=200, required=False, help_text="A compatible endpoint needs one.")
    models = ListOf(child=Text(max_length=120), min_length=1, required=False, allow_null=True)


class SignInBody(Shape):
    """The begin of a person's sign-in."""

    way = Choice(choices=[BROWSER, DEVICE])
    label = Text(max_length=80, required=False, help_text="Without one: the person's e-mail address.")  # type: ignore[assignment]
    plan = Choice(choices=PLANS, required=False, help_text="Where the sign-in does not say its size.")
    accept_terms = Flag(required=False, help_text="An owner accepts the terms for the organization; from others it counts nothing.")


class FileShape(Shape):
    name = Text(max_length=120)
    content = Text(
        max_length=joining.LARGEST_FILE_BYTES, write_only=True, help_text="The text of an auth.json: one sign-in or a list."
    )


class FilesBody(PlaceBody):
    """`auth.json` files of sign-ins that were made elsewhere; each sign-in is judged on its own."""

    files = ListOf(child=FileShape(), min_length=1, max_length=50)
    label = Text(max_length=80, required=False, help_text="For a single file.")  # type: ignore[assignment]
    plan = Choice(choices=PLANS, required=False)
    accept_terms = Flag(required=False, help_text="An owner accepts the terms for the organization; from others it counts nothing.")


class FinishBody(PlaceBody):
    """The end of a sign-in in a browser."""

    address = Text(max_length=20_000, write_only=True, help_text="The address that the browser ended at, all of it.")


class JoinedShape(Shape):
    """An account that serves from now on."""

    is_new = Flag(help_text="False: it was here, and its credential was renewed.")
    account = AccountShape()


class OutcomeShape(Shape):
    """What became of one sign-in of one file; `account` null: refused, with a code and a sentence."""

    source = Told()  # type: ignore[assignment]
    is_new = Flag()
    account = AccountShape(allow_null=True)
    code = Told(allow_null=True)
    reason = Told(allow_null=True)


class OutcomesShape(Shape):
    outcomes = OutcomeShape(many=True)


class SignInShape(Shape):
    """A sign-in under way: for who began it, once, within 15 minutes.

    In a browser: the person opens `url`, signs in, and the address that the browser ends at is given to `…/finish`. By a code: the
    person enters `user_code` at `url` on any device, and `…/poll` is asked until they have.
    """

    id = Uuid()
    way = Choice(choices=[BROWSER, DEVICE])
    url = Told()
    user_code = Told(allow_null=True)
    interval_seconds = Whole(allow_null=True)
    expires_at = Moment()


class PollShape(Shape):
    """`retry_after`: not yet; seconds until the next poll asks the issuer again. Else the account."""

    retry_after = Whole(allow_null=True)
    is_new = Flag()
    account = AccountShape(allow_null=True)


class TermsShape(Shape):
    """What an owner accepts before sign-in accounts may be pooled."""

    text = Told()
    accepted_at = Moment(allow_null=True)
    may_accept = Flag(help_text="Whether this token's member may accept them.")


# ---------------------------------------------------------------------------------------------------- calls


class Terms(Resource):
    @operation(
        "getSignInTerms",
        tag=JOINING,
        summary="Read the terms for pooling sign-in accounts",
        description="An owner accepts them with the first sign-in (`accept_terms`). API keys need none of it.",
        scope=api_tokens.POOL_READ,
        action=Action.MANAGE_POOL,
        answers=TermsShape,
    )
    def get(self, call: Call) -> Any:
        return {
            "text": terms.SIGN_IN_TERMS,
            "accepted_at": iso(call.member.organization.sign_in_terms_accepted_at),
            "may_accept": terms.accepted_by(call.member, said=True),
        }


class Keys(Resource):
    @operation(
        "addKeyAccount",
        tag=JOINING,
        summary="Add an API key, or a compatible endpoint",
        description="It is shown to its upstream first; what is refused there is not stored. The same key again renews it.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=KeyBody,
        answers=JoinedShape,
        examples={
            "OpenAI": {"kind": "openai", "label": "Company key", "api_key": "sk-…"},
            "An endpoint": {
                "kind": "openai_compatible",
                "label": "On-premises",
                "api_key": "EMPTY",
                "base_url": "https://models.example/v1",
                "models": ["open-coder-30b"],
            },
        },
    )
    def post(self, call: Call) -> Any:
        body = call.body
        joined = joining.add_key(
            call.member.organization,
            body["api_key"],
            kind=body["kind"],
            label=body["label"],
            base_url=body.get("base_url"),
            models=body.get("models"),
            by=call.by,
            now=call.now,
        )
        return _joined(call, joined)


class Files(Resource):
    @operation(
        "addFileAccounts",
        tag=JOINING,
        summary="Add sign-ins from auth.json files",
        description="Each sign-in is shown to its upstream first. What is refused is told of; the others join all the same.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=FilesBody,
        answers=OutcomesShape,
    )
    def post(self, call: Call) -> Any:
        body = call.body
        outcomes = joining.add_files(
            call.member.organization,
            [(one["name"], one["content"].encode()) for one in body["files"]],
            label=body.get("label", "") if len(body["files"]) == 1 else "",
            plan=body.get("plan"),
            accept_terms=_accepted(call),
            by=call.by,
            now=call.now,
        )
        for outcome in outcomes:
            if outcome.joined is not None:
                _place(call, outcome.joined)
        return {"outcomes": _outcomes(call, outcomes)}


class SignIns(Resource):
    @operation(
        "beginSignIn",
        tag=JOINING,
        summary="Begin a sign-in",
        description="In a browser, or by a code that its person enters on any device.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=SignInBody,
        answers=SignInShape,
        status=201,
        examples={"By a code": {"way": "device", "label": "Ada's Pro"}},
    )
    def post(self, call: Call) -> Any:
        body = call.body
        begin = oauth.start if body["way"] == BROWSER else device.start
        started = begin(
            call.member.organization,
            label=body.get("label", ""),
            plan=body.get("plan"),
            accept_terms=_accepted(call),
            by=call.by,
            now=call.now,
        )
        return _under_way(started)


class OneSignIn(Resource):
    @operation(
        "getSignIn",
        tag=JOINING,
        summary="Find a sign-in again that was begun and left",
        description="The same link or code, for who began it; asks nobody.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        answers=SignInShape,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        try:
            return _under_way(oauth.resume(call.member.organization, uuid, by=call.by, now=call.now))
        except FlowOver:
            return _under_way(device.resume(call.member.organization, uuid, by=call.by, now=call.now))


class FinishedSignIn(Resource):
    @operation(
        "finishSignIn",
        tag=JOINING,
        summary="End a sign-in in a browser",
        description="An address that is not this sign-in's leaves it open; any other end uses it up.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=FinishBody,
        answers=JoinedShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        return _joined(call, oauth.finish(call.member.organization, uuid, call.body["address"], by=call.by, now=call.now))


class PolledSignIn(Resource):
    @operation(
        "pollSignIn",
        tag=JOINING,
        summary="Ask whether the code has been entered",
        description="Sooner than `retry_after` nobody is asked. An account that has joined is told of once.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=PlaceBody,
        answers=PollShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = device.poll(call.member.organization, uuid, by=call.by, now=call.now)
        if not isinstance(found, Joined):
            return {"retry_after": found.retry_after, "is_new": False, "account": None}
        return {"retry_after": None, **_joined(call, found)}


def _accepted(call: Call) -> bool:
    return terms.accepted_by(call.member, said=call.body.get("accept_terms", False))


def _place(call: Call, joined: Joined) -> None:
    place = {name: call.body[name] for name in ("floor_percent", "priority") if name in call.body}
    if place:
        upkeep.change(joined.account, place, by=call.by)


def _joined(call: Call, joined: Joined) -> dict[str, Any]:
    _place(call, joined)
    return {"is_new": joined.is_new, "account": accounts.shown(call, accounts.find(call, joined.account.uuid))}


def _outcomes(call: Call, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    ids = [one.joined.account.pk for one in outcomes if one.joined is not None]
    shown = {one["id"]: one for one in accounts.told(call, list(accounts.rows_of(call).filter(pk__in=ids)))}
    return [
        {
            "source": one.source,
            "is_new": one.joined is not None and one.joined.is_new,
            "account": shown.get(str(one.joined.account.uuid)) if one.joined is not None else None,
            "code": one.code or None,
            "reason": one.reason or None,
        }
        for one in outcomes
    ]


def _under_way(started: oauth.Started | device.Started) -> dict[str, Any]:
    is_device = isinstance(started, device.Started)
    return {
        "id": str(started.flow_id),
        "way": DEVICE if is_device else BROWSER,
        "url": started.verification_url if isinstance(started, device.Started) else started.url,
        "user_code": started.user_code if isinstance(started, device.Started) else None,
        "interval_seconds": started.interval_seconds if isinstance(started, device.Started) else None,
        "expires_at": iso(started.expires_at),
    }


urls = [
    path("sign-in-terms", Terms.as_view(), name="api_sign_in_terms"),
    path("accounts/keys", Keys.as_view(), name="api_account_keys"),
    path("accounts/files", Files.as_view(), name="api_account_files"),
    path("sign-ins", SignIns.as_view(), name="api_sign_ins"),
    path("sign-ins/<uuid:uuid>", OneSignIn.as_view(), name="api_sign_in"),
    path("sign-ins/<uuid:uuid>/finish", FinishedSignIn.as_view(), name="api_sign_in_finish"),
    path("sign-ins/<uuid:uuid>/poll", PolledSignIn.as_view(), name="api_sign_in_poll"),
]
