"""The OpenAPI document, made of the same `Operation`s that steer the calls: every status that may come, the one form of errors."""

from functools import cache
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from api import base, idempotency, paging
from api.base import Operation
from api.fields import Shape

TOKEN, KEY = "apiToken", "gatewayKey"
SECURITY_SCHEMES = {
    TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "wt_…",
        "description": "A token of the API. It acts as one member of one organization, within its scopes.",
    },
    KEY: {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "wr_…",
        "description": "A gateway key: for its member's own status only.",
    },
}
WHY = {
    400: "Something about the call is wrong: `message` says what, `param` where. Nothing was done.",
    401: "No token, or one that does not hold.",
    403: "The token was not made for this, or the member's role does not allow it. Nothing was done.",
    404: "There is no such thing in this organization. Another organization's is answered the same.",
    409: "It cannot be done as things stand. Nothing was done.",
    410: "What it names was there, or will be, and is not there now.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    422: "The Idempotency-Key belongs to another call or body. Nothing was done.",
    429: "Too many calls, or a limit holds this back: `Retry-After` says for how long.",
    503: "Something that is needed does not answer. Try again after `Retry-After`.",
}


ERROR: dict[str, Any] = {
    "type": "object",
    "description": "Every refusal and failure has this form. Facts of the error stand beside its code and message.",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "Stable; to be read by programs."},
                "message": {"type": "string", "description": "A sentence; to be read by people."},
                "param": {"type": "string", "description": "The field or parameter that it is about."},
                "fields": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                    "description": "Every wrong field, with what is wrong with it.",
                },
            },
            "required": ["code", "message"],
            "additionalProperties": True,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
    "examples": [
        {
            "error": {
                "code": "unknown_field",
                "message": "budgett: There is no such field. It takes name, limits.",
                "param": "budgett",
                "fields": {"budgett": "There is no such field. It takes name, limits."},
            }
        }
    ],
}
COMPONENTS = {"schemas": {"Error": ERROR}, "securitySchemes": SECURITY_SCHEMES}
_ERROR = {"$ref": "#/components/schemas/Error"}


def named(shape: type[Any]) -> str:
    """As clients know it: `MemberShape` is a Member to them."""
    return shape.__name__.removesuffix("Shape")


@cache
def page_of(shape: type[Shape]) -> type[Shape]:
    """The shape of a list of such rows."""
    return type(
        f"{named(shape)}Page",
        (Shape,),
        {
            "__doc__": "A piece of the list.",
            "results": shape(many=True),
            "next": serializers.URLField(allow_null=True, help_text="The next piece; null: this was the last."),
            "previous": serializers.URLField(allow_null=True, help_text="The piece before; null: this was the first."),
        },
    )


class OperationSchema(AutoSchema):
    """Describes the operations of resources."""

    @property
    def about(self) -> Operation:
        assert isinstance(self.view, base.Resource)
        found = self.view.operation(self.method)
        assert isinstance(found, Operation)
        return found

    def is_excluded(self) -> bool:
        return not isinstance(self.view, base.Resource) or self.view.operation(self.method) is None

    def get_operation_id(self) -> str:
        return self.about.id

    def get_summary(self) -> str:
        return self.about.summary

    def get_description(self) -> str:  # type: ignore[override]  # as AutoSchema has it
        return f"{self.about.description}\n\nScope: `{self.about.scope}`.".strip()

    def get_tags(self) -> list[str]:
        return [self.about.tag]

    def get_auth(self) -> list[dict[str, list[str]]]:
        names = (TOKEN, KEY) if self.about.takes_keys else (TOKEN,)
        return [{name: []} for name in names]

    def get_request_serializer(self) -> Any:
        return self.about.body

    def get_extensions(self) -> dict[str, Any]:
        return {"x-scope": self.about.scope}

    def _get_request_for_media_type(self, serializer: Any, direction: Any = "request") -> Any:
        schema, is_required = super()._get_request_for_media_type(serializer, direction)  # type: ignore[no-untyped-call]
        # A body in which nothing is required may be left out; said to be required where a field of it is.
        required = self.about.body is not None and any(field.required for field in self.about.body().fields.values())
        return schema, required and is_required

    def get_response_serializers(self) -> Any:
        about = self.about
        found: dict[int, Any] = {}
        if about.answers is None:
            found[204] = OpenApiResponse(description="Done.")
        else:
            found[about.status] = page_of(about.answers) if about.is_list else about.answers
        return found | {status: OpenApiResponse(_ERROR, description=WHY[status]) for status in sorted(self._errors())}

    def get_override_parameters(self) -> list[Any]:
        about = self.about
        found: list[Any] = [about.query] if about.query is not None else []
        if about.is_list:
            found += [
                OpenApiParameter(
                    paging.LIMIT,
                    {"type": "integer", "minimum": 1, "maximum": paging.MOST_LIMIT, "default": paging.DEFAULT_LIMIT},
                    description="How many at most.",
                ),
                OpenApiParameter(paging.CURSOR, str, description="From `next` or `previous`; made by no one else."),
            ]
        if about.idempotency is not None:
            found += [
                OpenApiParameter(
                    idempotency.HEADER,
                    {"type": "string", "minLength": 1, "maxLength": idempotency.MOST_CHARACTERS, "pattern": "^[!-~]+$"},
                    location=OpenApiParameter.HEADER,
                    required=about.idempotency == base.REQUIRED,
                    description="Of your own making, such as a UUID: the call is done once, and repeated calls get its answer.",
                ),
                OpenApiParameter(
                    idempotency.REPLAYED,
                    {"type": "string", "enum": ["true"]},
                    location=OpenApiParameter.HEADER,
                    response=[about.status if about.answers is not None else 204],
                    description="Nothing was done now: this is the answer of the first call.",
                ),
            ]
        found.append(
            OpenApiParameter(
                "Retry-After", {"type": "integer"}, location=OpenApiParameter.HEADER, response=[429, 503], description="Seconds."
            )
        )
        return found

    def get_examples(self) -> list[Any]:
        about = self.about
        found = [OpenApiExample(name, value=value, request_only=True) for name, value in about.examples.items()]
        if about.example is not None:
            value = {"results": [about.example], "next": None, "previous": None} if about.is_list else about.example
            status = str(about.status)
            found.append(OpenApiExample("Answer", value=value, response_only=True, status_codes=[status]))
        return found

    def _errors(self) -> set[int]:
        about = self.about
        found = {400, 401, 403, 429, 503, *about.errors}
        if "{" in self.path:
            found.add(404)
        if self.method not in base.READS:
            found |= {409, 413, 415}
        if about.idempotency is not None:
            found |= {409, 422}
        return found

    def _get_serializer_name(self, serializer: Any, direction: Any, bypass_extensions: bool = False) -> str:
        return named(serializer if isinstance(serializer, type) else type(serializer))

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        schema = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        kind = serializer if isinstance(serializer, type) else type(serializer)
        if issubclass(kind, Shape):
            schema["additionalProperties"] = False
        return schema


def with_components(result: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The document with what is no serializer's: the form of errors, and how to prove who one is."""
    found = result.setdefault("components", {})
    for kind, named in COMPONENTS.items():
        found[kind] = {**found.get(kind, {}), **named}
    return result
