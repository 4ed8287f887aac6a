"""Proxied requests over HTTP: the ASGI leaf of each dialect. What happens to them is `proxy.engine`."""

from django.conf import settings

from config import logging as weir_logging
from proxy import errors, intake, lifespan, request_ids
from proxy.asgi import App, Receive, Scope, Send, headers_of
from proxy.dialects.inspection import Inspection
from proxy.dialects.wire import Dialect
from proxy.engine import Engine
from proxy.http_attempt import HttpAttempt
from proxy.lifespan import Resources
from proxy.relay import Downstream


def app(dialect: Dialect) -> App:
    """The ASGI leaf of a dialect."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_ids.new()
        headers = headers_of(scope)
        downstream = Downstream(send, receive, stall_seconds=settings.UPSTREAM_IDLE_TIMEOUT_SECONDS)
        engine = Engine(dialect, HttpAttempt, downstream, request_id=request_id, headers=headers, pairs=scope["headers"])

        async def read(resources: Resources) -> Inspection:
            if scope["method"] != "POST":
                raise errors.MethodNotAllowed("Only POST is served here.")
            await engine.identify(resources)
            body = await intake.read_body(receive, headers, limit=settings.PROXY_MAX_BODY_BYTES)
            return dialect.inspect(body.data, coded=body.coded)

        with weir_logging.context(request_id=request_id):
            await engine.run(lifespan.resources(), read)

    return handle
