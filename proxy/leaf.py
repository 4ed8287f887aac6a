"""What the small GET leaves share: a caller judged by the newest configuration, and refusals in the wire's form."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from config import logging as weir_logging
from config.errors import DomainError
from proxy import auth, errors, lifespan, request_ids
from proxy.asgi import App, Receive, Scope, Send, headers_of, send_answer
from proxy.auth import Caller
from proxy.errors import Answer
from proxy.lifespan import Resources
from quotas import admission
from quotas.errors import NoActivePlan, Stale
from quotas.standing import Usage

logger = logging.getLogger(__name__)

MAX_RELOADS = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """A GET by a valid key. `standing` is how its limits stand now; None where there is no plan to draw on."""

    resources: Resources
    request_id: str
    caller: Caller
    standing: Usage | None
    query: dict[str, list[str]]
    headers: Mapping[str, str] = field(repr=False)


def leaf(respond: Callable[[Asked], Awaitable[Answer]]) -> App:
    """An ASGI callable for `respond`. One Redis round trip: it also proves that the key is still one (F1)."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_ids.new()
        resources = lifespan.resources()
        with weir_logging.context(request_id=request_id):
            try:
                if scope["method"] not in ("GET", "HEAD"):
                    raise errors.MethodNotAllowed("Only GET is served here.")
                asked = await _ask(resources, scope, request_id)
                answer = await respond(asked)
            except DomainError as error:
                answer = errors.answer(error, now=resources.now(), request_id=request_id)
            except Exception:
                logger.exception("request failed")
                answer = errors.answer(errors.InternalError("The gateway failed."), now=resources.now(), request_id=request_id)
        await send_answer(send, answer)

    return handle


async def _ask(resources: Resources, scope: Scope, request_id: str) -> Asked:
    headers = headers_of(scope)
    caller = await auth.identify(headers, now=resources.now(), redis=resources.redis)
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    for _ in range(MAX_RELOADS):
        try:
            standing = await admission.usage(resources.redis, caller.snapshot, caller.key)
            return Asked(resources, request_id, caller, standing, query, headers)
        except NoActivePlan:
            return Asked(resources, request_id, caller, None, query, headers)
        except Stale as stale:
            caller = await auth.identify(headers, now=resources.now(), redis=resources.redis, at_least=stale.version)
    raise errors.Degraded("The configuration is changing. Try again in a few seconds.")
