"""The server's side of a client's WebSocket: uvicorn's own protocol, which at a restart lets the turn that runs come to its end.

Named where uvicorn is started (`--ws proxy.socket_server:SocketProtocol`); its own closes every socket at once, in mid-answer.
"""

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

CONNECTION = "weir.connection"
"""Where the protocol puts itself among a scope's extensions."""
OPTIONS: dict[str, Any] = {"ws": "proxy.socket_server:SocketProtocol", "ws_per_message_deflate": False}
"""What a web process gives uvicorn. A deflate window costs more memory per socket than all else together."""
MOST_FRAGMENTS = 20_000
"""Of one message, each kept until the last comes. Clients send a frame in one piece, or in some of kilobytes."""
ABORT_SECONDS = 2.0
"""How long a client that answers no ping may take what is left to be sent to it."""


def largest_frame(most_body_bytes: int) -> int:
    """`ws_max_size`: a frame above it ends its socket before anybody can say why. One that is just too large is refused by us, and
    the socket stays (N63)."""
    return 2 * most_body_bytes


class SocketProtocol(WebSocketsSansIOProtocol):
    """`is_in_turn`: an answer is on its way. `is_ending`: the process ends, and the socket is to be closed after it."""

    is_in_turn = False
    is_ending = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._extensions: dict[str, Any] = {}

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[CONNECTION] = self
            self._extensions = extensions

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # What refers to itself stays until the collector comes by.
        self._extensions.pop(CONNECTION, None)

    def handle_text(self, event: Frame) -> None:
        super().handle_text(event)
        # The parser keeps its last frame until the next comes, which may have megabytes.
        event.data = b""

    def handle_cont(self, event: Frame) -> None:
        if self.close_sent:
            return
        super().handle_cont(event)
        event.data = b""
        if len(self.frames) > MOST_FRAGMENTS:
            self.frames = []
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()

    def handle_bytes(self, event: Frame) -> None:
        super().handle_bytes(event)
        event.data = b""

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)

    async def send(self, message: Any) -> None:
        try:
            await super().send(message)
        except RuntimeError:
            if not self.close_sent:
                raise
            # Closed meanwhile, by us or because the client does not answer: for whoever sends it has left.
            raise ClientDisconnected from None

    def shutdown(self) -> None:
        if self.is_in_turn and not self.transport.is_closing():
            self.is_ending = True
            return
        super().shutdown()
