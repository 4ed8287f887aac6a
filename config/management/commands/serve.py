"""`manage.py serve`: web processes. One per core; any number of machines."""

from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.conf import settings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management.base import BaseCommand, CommandError

from proxy import socket_server

CLOSING_SECONDS = 2


class Command(BaseCommand):
    help = "Serve proxied requests and pages. DATABASE_URL and REDIS_URL must be set."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument("--port", type=int, default=8000, help="port (8000)")
        parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that share the port (1)")

    def handle(self, *args: Any, host: str, port: int, workers: int, **options: Any) -> None:
        if not 1 <= port <= 65535:
            raise CommandError(f"--port {port} is not from 1 to 65535.")
        if not 1 <= workers <= 64:
            raise CommandError(f"--workers {workers} is not from 1 to 64.")
        # Pages name static files by their hash: without the list of hashes each of them would answer 500.
        if not getattr(staticfiles_storage, "hashed_files", True):
            raise CommandError(
                f"there are no static files in {settings.STATIC_ROOT}. Run `manage.py collectstatic --no-input`, "
                "with the same WEIR_VAR, once per release."
            )
        uvicorn.run(
            "config.asgi:application",
            host=host,
            port=port,
            workers=workers if workers > 1 else None,
            loop="uvloop",
            http="httptools",
            ws_max_size=socket_server.largest_frame(settings.PROXY_MAX_BODY_BYTES),
            lifespan="on",
            access_log=False,
            log_config=None,
            # Forwarded headers are judged by TrustedProxyMiddleware.
            proxy_headers=False,
            server_header=False,
            # What ran has ended by then (`proxy.draining`): this is for connections that a client keeps open.
            timeout_graceful_shutdown=CLOSING_SECONDS,
            **socket_server.OPTIONS,
        )
