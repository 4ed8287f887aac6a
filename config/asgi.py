"""The front door: proxied paths go to plain ASGI leaves, /ws/ to consumers, the rest to Django.

Proxied paths are not Channels consumers: a consumer reads its next message, the client's disconnect included, only after its
handler returns.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.prod")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()

# Models are ready only now.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.conf import settings  # noqa: E402
from django.urls import re_path  # noqa: E402

from billing import webhooks  # noqa: E402
from config import bodies  # noqa: E402
from proxy import catalog, draining, exchange, lifespan, sockets, told, usage  # noqa: E402
from proxy.dialects import chat, compact, messages, responses  # noqa: E402
from quotas import consumers  # noqa: E402

logger = logging.getLogger(__name__)

responses_app = exchange.app(responses)
messages_app = exchange.app(messages)
chat_app = exchange.app(chat)
compact_app = exchange.app(compact)


async def lifespan_app(scope: Any, receive: Any, send: Any) -> None:
    """Opens and closes what a web process shares; a failure to open stops the process with its reason."""
    signals: draining.Signals | None = None
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await lifespan.startup()
                signals = draining.Signals(lifespan.resources())
            except Exception as error:
                logger.exception("startup failed")
                await send({"type": "lifespan.startup.failed", "message": type(error).__name__})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            if signals is not None:
                signals.give_back()
            await lifespan.shutdown()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def decline_websocket(scope: Any, receive: Any, send: Any) -> None:
    """426: Codex falls back to HTTP for the session, silently and at once (protocol note, section 7a)."""
    await receive()
    await send({"type": "websocket.http.response.start", "status": 426, "headers": [(b"content-type", b"application/json")]})
    body = b'{"error":{"message":"Use HTTP.","type":"invalid_request_error","param":null,"code":"upgrade_required"}}'
    await send({"type": "websocket.http.response.body", "body": body})


def route(pattern: str, application: Any) -> Any:
    """A row of a URLRouter: an ASGI application where `re_path` is typed for views."""
    return re_path(pattern, application)


bounded_django = lifespan.counted(
    bodies.bounded(django_application, settings.DATA_UPLOAD_MAX_MEMORY_SIZE, at_prefix={"/webhooks/": webhooks.MOST_BYTES})
)
live_pages: Any = consumers.websocket_urlpatterns

RESPONSES_PATHS = ("/v1/responses", "/backend-api/codex/responses")
PROXIED: Mapping[str, Any] = {
    **dict.fromkeys(RESPONSES_PATHS, responses_app),
    **{f"{path}/compact": compact_app for path in RESPONSES_PATHS},
    "/v1/chat/completions": chat_app,
    "/v1/messages": messages_app,
    "/v1/models": catalog.openai_app,
    "/backend-api/codex/models": catalog.codex_app,
    "/v1/usage": usage.app,
    **dict.fromkeys(("/api/codex/usage", "/backend-api/wham/usage"), told.usage_app),
    **dict.fromkeys(("/api/codex/accounts/check", "/backend-api/wham/accounts/check"), told.accounts_check_app),
}
"""What clients of the gateway ask for. Found by the whole path: a router's patterns would cost a tenth of a short request."""

other_http = URLRouter([route(r"^(?:v1|backend-api|api/codex)(?:/|$)", catalog.not_found_app), route(r"", bounded_django)])


async def http(scope: Any, receive: Any, send: Any) -> None:
    await PROXIED.get(scope["path"], other_http)(scope, receive, send)


application = ProtocolTypeRouter(
    {
        "lifespan": lifespan_app,
        "http": http,
        "websocket": URLRouter(
            [
                route(r"^(?:v1|backend-api/codex)/responses$", sockets.app),
                route(r"^ws/", AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(live_pages)))),
                route(r"", decline_websocket),
            ]
        ),
    }
)
