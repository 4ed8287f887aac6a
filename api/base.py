"""What every call goes through: who calls, how often, whether the token and the role allow it, what was asked, done once.

A resource is a class with one method per HTTP method, each decorated with `operation`: the same words steer the call and describe
it in the schema, so that the two cannot differ. A method is given a `Call` and the ids of the path, calls one domain function and
returns plain JSON values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.exceptions import AuthenticationFailed, MethodNotAllowed, NotAuthenticated
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import missing, permissions, tenancy
from accounts.api import Caller, OrganizationView, TokenAuthentication, TokenOrKeyAuthentication
from accounts.errors import ParameterInvalid, TokenScopeMissing
from accounts.models import ApiToken, Member, User
from accounts.permissions import Action, Reach
from api import bodies, idempotency, paging, throttling
from api.errors import BodyInvalid
from api.fields import Query, Shape, Whole
from api.idempotency import Answer
from config import scope
from config.clock import utc_now

M = TypeVar("M", bound=Model)

READS = ("GET", "HEAD")
OPTIONAL, REQUIRED = "optional", "required"
"""Whether a call takes an Idempotency-Key, or must have one."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a resource. `scope` is what the token must be made for, `action` what its member's role must reach at all.

    `answers` is the shape of the answer, of one row if it `is_list`; None: nothing (204). `errors` are statuses beside those that
    follow from the rest.
    """

    id: str
    tag: str
    summary: str
    scope: str
    action: Action | None
    description: str = ""
    body: type[Shape] | None = None
    query: type[Query] | None = None
    answers: type[Shape] | None = None
    status: int = 200
    is_list: bool = False
    idempotency: str | None = None
    errors: tuple[int, ...] = ()
    takes_keys: bool = False
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Of the body, by name."""
    example: Any = None
    """Of the answer, or of one row."""

    @property
    def parameters(self) -> tuple[str, ...]:
        own = tuple(self.query().fields) if self.query is not None else ()
        return (*own, paging.LIMIT, paging.CURSOR) if self.is_list else own


class PageQuery(Query):
    """What every list takes; the cursor is read by `api.paging`."""

    limit = Whole(min_value=1, max_value=paging.MOST_LIMIT, required=False, help_text="How many at most.")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: whose it is, when it came, and what was asked, checked by shape. `body` and `query` hold what was given only."""

    request: Request
    member: Member
    token: ApiToken | None
    now: datetime
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    query: Mapping[str, Any] = field(default_factory=dict)
    limit: int = paging.DEFAULT_LIMIT

    @property
    def by(self) -> User | None:
        return self.member.user

    def demand(self, action: Action, *, of: Member | None = None, team_id: int | None = None) -> None:
        """Raises PermissionDenied (403)."""
        tenancy.demand(self.member, action, of=of, team_id=team_id)

    def owned(self, rows: QuerySet[M], uuid: Any) -> M:
        return tenancy.owned(rows, self.member.organization, uuid)

    def page(
        self,
        rows: QuerySet[Any],
        shown: Callable[[Any], dict[str, Any]] | None = None,
        *,
        together: Callable[[Sequence[Any]], list[dict[str, Any]]] | None = None,
        is_newest_first: bool = False,
    ) -> dict[str, Any]:
        """A page of rows, as lists are answered: each `shown`, or all of the page `together`."""
        return paging.page(
            self.request,
            self.member.organization_id,
            rows,
            shown,
            together=together,
            limit=self.limit,
            is_newest_first=is_newest_first,
        )


Handler = Callable[..., Any]
"""(resource, call, **ids of the path) -> JSON values, an `Answer` (with secrets), or None."""


def operation(id: str, **options: Any) -> Callable[[Handler], Callable[..., Response]]:
    """Makes a method of a resource the operation `id`; `options` are the fields of `Operation`."""
    about = Operation(id, **options)

    def decorate(handle: Handler) -> Callable[..., Response]:
        @wraps(handle)
        def method(self: "Resource", request: Request, **ids: Any) -> Response:
            return self.perform(about, handle, request, ids)

        method.operation = about  # type: ignore[attr-defined]
        return method

    return decorate


class JSONAlways(BaseContentNegotiation):
    """There is one form of answer, whatever a client says that it would like."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class Resource(OrganizationView):
    """A view whose methods are operations."""

    content_negotiation_class = JSONAlways
    parser_classes = [JSONParser]
    metadata_class = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]

    def operation(self, method: str) -> Operation | None:
        handler = getattr(self, ("get" if method == "HEAD" else method.lower()), None)
        return getattr(handler, "operation", None)

    def get_authenticators(self) -> list[Any]:
        about = self.operation(self.request.method or "") if getattr(self, "request", None) is not None else None
        return [TokenOrKeyAuthentication() if about is not None and about.takes_keys else TokenAuthentication()]

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = super().dispatch(request, *args, **kwargs)
        if response.status_code == 404 and isinstance(caller := self.request.auth, Caller):
            assert caller.member.user is not None, "nobody calls for a former member"
            with scope.organization(caller.member.organization_id):
                missing.asked(request, caller.member.organization, caller.member.user)
        return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raises Throttled, TokenScopeMissing, PermissionDenied and ParameterInvalid beside what DRF raises."""
        try:
            super().initial(request, *args, **kwargs)
        except (AuthenticationFailed, NotAuthenticated):
            throttling.of_failure(request._request)
            raise
        caller = self.caller(request)
        throttling.of_caller(caller.member.pk, caller.token.pk if caller.token is not None else None)
        about = self.operation(request.method or "")
        if about is None:
            raise MethodNotAllowed(request.method or "")
        if caller.token is not None and about.scope not in caller.token.scopes:
            raise TokenScopeMissing(f"This token was not made for {about.scope}.", scope=about.scope)
        if about.action is not None and permissions.reach(caller.member, about.action) is Reach.NONE:
            raise PermissionDenied
        for name in request.query_params:
            if name not in about.parameters:
                taken = f" It takes {', '.join(sorted(about.parameters))}." if about.parameters else ""
                raise ParameterInvalid(f"There is no parameter {name[:80]!r} here.{taken}", param=name[:80])
            if len(request.query_params.getlist(name)) > 1:
                raise ParameterInvalid(f"{name} is given more than once.", param=name)

    def perform(self, about: Operation, handle: Handler, request: Request, ids: Mapping[str, Any]) -> Response:
        """Checks what was asked, does it (once for each Idempotency-Key), and answers."""
        caller: Caller = self.caller(request)
        call = Call(request, caller.member, caller.token, utc_now())
        raw = {} if request.method in READS else bodies.read(request._request)
        if raw and about.body is None:
            raise BodyInvalid("This call takes no body.")
        if about.body is not None:
            call = replace(call, body=_checked(about.body(data=raw)))
        query = {name: request.query_params[name] for name in request.query_params if name != paging.CURSOR}
        if about.is_list:
            own = _checked(PageQuery(data={name: text for name, text in query.items() if name == paging.LIMIT}))
            call = replace(call, limit=own.get(paging.LIMIT, paging.DEFAULT_LIMIT))
            query.pop(paging.LIMIT, None)
        if about.query is not None:
            call = replace(call, query=_checked(about.query(data=query)))

        def done() -> Answer:
            made = handle(self, call, **ids)
            if isinstance(made, Answer):
                return made
            return Answer(about.status if about.answers is not None else 204, made)

        key = None
        if about.idempotency is not None:
            is_required = about.idempotency == REQUIRED
            key = idempotency.checked(request.headers.get(idempotency.HEADER), is_required=is_required)
        if key is None:
            return _response(done())
        route = f"{request.method} {request.path}"
        return _response(idempotency.once(call.member, key, route=route, asked=raw, now=call.now, call=done))


def _checked(shape: Shape | Query) -> Mapping[str, Any]:
    shape.is_valid(raise_exception=True)
    found: Mapping[str, Any] = shape.validated_data
    return found


def _response(answer: Answer) -> Response:
    headers = {idempotency.REPLAYED: "true"} if answer.is_replayed else None
    return Response(answer.data, status=answer.status, headers=headers)


class Nowhere(Resource):
    """Paths that are not there, in the API's own form."""

    authentication_classes = []
    permission_classes = []

    def get_authenticators(self) -> list[Any]:
        return []

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.http_method_not_allowed = self._missing  # type: ignore[method-assign]
        return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise Http404

    def _missing(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        raise Http404
