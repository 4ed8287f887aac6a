"""Which headers go on, which are replaced, which stay here (protocol note, section 2)."""

import re
from collections.abc import Iterable, Sequence

from routing.snapshots import ANTHROPIC, ANTHROPIC_VERSION, OPENAI

Pairs = Sequence[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {b"connection", b"upgrade", b"te", b"trailer", b"transfer-encoding", b"keep-alive", b"proxy-authorization"}
    | {b"proxy-authenticate", b"proxy-connection"}
)
# The client's own identity and way here; what the relay sets itself; what would let an upstream compress.
_NOT_TO_UPSTREAM = _HOP_BY_HOP | {
    b"authorization", b"x-api-key", b"api-key", b"host", b"chatgpt-account-id", b"cookie", b"content-length", b"content-encoding",
    b"accept-encoding", b"expect",
    b"forwarded", b"via", b"x-real-ip", b"openai-organization", b"openai-project",
}  # fmt: skip
_NOT_TO_UPSTREAM_PREFIXES = (b"proxy-", b"sec-websocket-", b"x-forwarded-", b"x-weir-")

# The account's cookies, organization and limits are the pool's business, and so are its address and how it is signed in to; the
# server writes its own date and name.
_NOT_TO_CLIENT = _HOP_BY_HOP | {
    b"set-cookie", b"date", b"server", b"alt-svc", b"strict-transport-security", b"report-to", b"nel", b"via",
    b"openai-organization", b"openai-project", b"location", b"content-location", b"refresh", b"www-authenticate",
    b"clear-site-data",
}  # fmt: skip
_NOT_TO_CLIENT_PREFIXES = (b"proxy-", b"x-ratelimit-", b"anthropic-", b"x-weir-")
_POOL_WINDOW = re.compile(
    rb"x-.+-(?:used-percent|window-minutes|reset-at|reset-after-seconds|limit-name|has-credits|unlimited|balance)$"
)
_TURN_STATE = b"x-codex-turn-state"
_BETA = b"openai-beta"
SOCKETS = b"responses_websockets"
_MODEL = b"openai-model"
_DATE = re.compile(rb"-\d{4}-\d{2}-\d{2}$")
_VERSION = b"anthropic-version"


def _named_by_connection(headers: Pairs) -> set[bytes]:
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(part.strip().lower() for part in value.split(b","))
    return named


def to_upstream(
    headers: Pairs,
    *,
    token: str,
    chatgpt_account_id: str | None,
    is_streamed: bool,
    encoding: str | None = None,
    kind: str = OPENAI,
) -> list[tuple[bytes, bytes]]:
    """The client's headers (lower-case names) as the account's upstream gets them; without host and content-length.

    `encoding`: the content coding that the body goes on in, None if it is plain. `kind` of account: says how it shows its token.
    """
    hop = _named_by_connection(headers)
    passed = [
        (name, value)
        for name, value in headers
        if name not in _NOT_TO_UPSTREAM and name not in hop and not name.startswith(_NOT_TO_UPSTREAM_PREFIXES)
    ]
    if kind == ANTHROPIC:
        passed.append((b"x-api-key", token.encode("ascii")))
        if not _has(passed, _VERSION):
            passed.append((_VERSION, ANTHROPIC_VERSION.encode("ascii")))
    else:
        passed.append((b"authorization", b"Bearer " + token.encode("ascii")))
    if chatgpt_account_id:
        passed.append((b"chatgpt-account-id", chatgpt_account_id.encode("ascii")))
    if encoding is not None:
        passed.append((b"content-encoding", encoding.encode("ascii")))
    if is_streamed and not _has(passed, b"accept"):
        passed.append((b"accept", b"text/event-stream"))
    if not _has(passed, b"content-type"):
        passed.append((b"content-type", b"application/json"))
    return passed


def to_upstream_socket(headers: Pairs, *, token: str, chatgpt_account_id: str | None) -> list[tuple[bytes, bytes]]:
    """The headers of a client's upgrade as those of ours; without host and what the upgrade itself needs."""
    passed = to_upstream(headers, token=token, chatgpt_account_id=chatgpt_account_id, is_streamed=False)
    # A turn's state is known to the account that issued it alone, and this socket is for any turn.
    passed = [(name, value) for name, value in passed if name not in (b"content-type", _TURN_STATE)]
    if not any(name == _BETA and SOCKETS in value for name, value in passed):
        passed.append((_BETA, SOCKETS + b"=2026-02-06"))
    return passed


def to_client(
    headers: Pairs,
    *,
    request_id: str,
    is_rewritten: bool = False,
    asked_model: str | None = None,
    upstream_model: str | None = None,
) -> list[tuple[bytes, bytes]]:
    """An upstream's headers as the client gets them; never the pool's limits.

    `is_rewritten`: the body is not the upstream's, so its length, coding and type are not either. `asked_model`: the name that the
    client used where the upstream was asked by another; it stands in `openai-model`, and the truth in `x-weir-served-model`.
    `upstream_model`: that other name; a third one in `openai-model` is the upstream's own reroute, of which the client is to hear.
    """
    hop = _named_by_connection(headers)
    passed = [(name, value) for name, value in headers if name not in hop and _may_pass(name)]
    if is_rewritten:
        dropped = (b"content-length", b"content-encoding", b"content-type", b"etag")
        passed = [(name, value) for name, value in passed if name not in dropped]
    if asked_model is not None:
        served = [value for name, value in passed if name == _MODEL]
        asked = asked_model.encode()
        passed = [(name, asked if name == _MODEL and _is_of(value, upstream_model) else value) for name, value in passed]
        if not served and upstream_model is not None:
            served = [upstream_model.encode()]
        passed += [(b"x-weir-served-model", value) for value in served]
    if not _has(passed, b"x-request-id"):
        passed.append((b"x-request-id", request_id.encode()))
    passed.append((b"x-weir-request-id", request_id.encode()))
    return passed


def _is_of(value: bytes, model: str | None) -> bool:
    """Is this the model, or a dated name of it?"""
    name = _DATE.sub(b"", value)
    return model is None or model.encode() in (value, name)


def _may_pass(name: bytes) -> bool:
    if name in _NOT_TO_CLIENT or name.startswith(_NOT_TO_CLIENT_PREFIXES):
        return False
    if name.startswith(b"x-codex-"):
        return name == _TURN_STATE
    return _POOL_WINDOW.match(name) is None


def _has(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bool:
    return any(name == known for known, _ in headers)
