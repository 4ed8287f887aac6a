"""An attempt over HTTP: send the request, relay its stream, fold it or pass it on whole, and say what came of it."""

import asyncio
import json
import logging

from django.conf import settings

from proxy import headers as wire_headers
from proxy import metering, sse
from proxy.attempt import ABOUT_ACCOUNTS, CLIENTS_OWN, MOST_ERROR_BYTES, Attempting, Verdict
from proxy.errors import JSON_TYPE, STREAM_INCOMPLETE, Answer, BadAnswer, Cut, Restarting, UpstreamError
from proxy.relay import StreamRelay
from proxy.settlement import EndedBy
from proxy.sse import Event
from proxy.upstream import Request, Response
from proxy.upstream_errors import error_of, type_of, with_envelope
from routing import health
from routing.credentials import Credential
from routing.health import Kind

logger = logging.getLogger(__name__)

MOST_ANSWER_BYTES = 64 * 1024 * 1024
ERROR_SECONDS = 5.0
"""How long the body of a refusal is waited for: another account could have answered by then."""
TAIL_SECONDS = 1.0
"""How long the end of a stream is waited for after its terminal event."""
WINDOW_HEADER = "x-codex-primary-used-percent"
"""The only window of an account comes in the first slot too."""


class HttpAttempt(Attempting):
    """One request over HTTP."""

    _relay: StreamRelay | None = None
    _tail_until: float | None = None
    _heart: asyncio.TimerHandle | None = None

    async def _carry(self, credential: Credential) -> Verdict:
        try:
            async with self._resources.upstream.open(self._request(credential), on_written=self._written) as response:
                self._attempt.http_status = response.status
                return await self._answered(response, credential)
        finally:
            if self._heart is not None:
                self._heart.cancel()

    def _let_go(self) -> None:
        self._relay = None

    def _request(self, credential: Credential) -> Request:
        wire = self._wire
        return Request(
            method="POST",
            url=f"{self._account.base_url}{wire.path}",
            headers=wire_headers.to_upstream(
                self._client_headers,
                token=credential.token,
                chatgpt_account_id=credential.chatgpt_account_id if self._is_sign_in else None,
                is_streamed=wire.is_streamed,
                encoding=wire.encoding,
                kind=self._account.kind,
            ),
            body=wire.body,
        )

    # -- from the upstream

    async def _answered(self, response: Response, credential: Credential) -> Verdict:
        if response.status >= 400:
            return await self._refused(response, credential)
        if response.status >= 300:
            raise BadAnswer("a redirect")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            # It may be a good answer, and is not free because we cannot read it.
            self._attempt.ended_by = EndedBy.US
            raise BadAnswer("a coding that was not asked for")
        if WINDOW_HEADER in response.headers:
            self._resources.spawn(self._note_windows(response.headers))
        self._keeping.see_head(response.headers)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_stream = kind == "text/event-stream" or (not kind and self._wire.is_streamed)
        if not is_stream:
            return await self._whole(response)
        if self._inspection.stream:
            return await self._stream(response)
        return await self._folded(response)

    async def _stream(self, response: Response) -> Verdict:
        """Events to the client as they come."""
        tab, meter = self._tab, self._attempt.meter
        passed = self._passed(response)
        # A stream that we must end ourselves has another length.
        head = (response.status, [pair for pair in passed if pair[0] != b"content-length"])
        relay = self._relay = StreamRelay(self._downstream, self._wire, head, before_open=self._record_owner, brings=self._brings)
        self._downstream.wrote_at = self._loop.time()
        self._listen_for_silence()
        while (chunk := await self._next(response, relay)) is not None:
            await relay.feed(chunk)
            if meter.windows is not None:
                self._take_windows()
            if meter.has_output:
                tab.saw_output()
            if relay.is_refused:
                return self._refused_in_stream(response, relay)
            if meter.is_terminal:
                self._saw_terminal()
                if self._downstream.has_left:
                    break
            self._observe()
        await relay.finish()
        if meter.failure is not None:
            self._failed_late(response.headers, meter.failure)
        if not meter.is_terminal:
            raise Cut("the stream ended without a terminal event")
        self._close_status()
        return Verdict()

    def _listen_for_silence(self) -> None:
        """Sends a heartbeat whenever the client has heard nothing for HEARTBEAT_SECONDS."""
        every = settings.HEARTBEAT_SECONDS
        silent = self._loop.time() - self._downstream.wrote_at
        if silent >= every - 0.001 and self._relay is not None and not self._attempt.meter.is_terminal:
            # Counted from now also if it cannot be sent: a client that takes nothing gets no more of them.
            self._downstream.wrote_at = self._loop.time()
            self._resources.spawn(self._relay.beat(self._tab.call.dialect.HEARTBEAT))
            silent = 0.0
        self._heart = self._loop.call_later(max(every - silent, 0.01), self._listen_for_silence)

    async def _next(self, response: Response, relay: StreamRelay) -> bytes | None:
        """The next chunk; None at the end, or when nothing follows the terminal event."""
        while True:
            is_terminal = self._attempt.meter.is_terminal
            if is_terminal and self._tail_until is None:
                self._tail_until = self._loop.time() + TAIL_SECONDS
            if self._tail_until is not None and self._loop.time() >= self._tail_until:
                # Whatever still drips in: the answer is whole.
                return None
            patience = self._tail_until - self._loop.time() if self._tail_until else relay.patience(self._loop.time())
            if patience is None:
                return await response.next_chunk()
            try:
                async with asyncio.timeout(patience):
                    return await response.next_chunk()
            except TimeoutError:
                if is_terminal:
                    return None
                await relay.open()

    async def _folded(self, response: Response) -> Verdict:
        """Events to one object: the client wants no stream, the sign-in backend gives nothing else."""
        meter, wire = self._attempt.meter, self._wire
        scanner = sse.Scanner(wire.want_to_fold, largest=metering.LARGEST_EVENT_BYTES)
        kept: list[Event] = []
        size = 0
        cut = Cut("the stream ended without a terminal event")
        while not meter.is_terminal:
            try:
                chunk = await response.next_chunk()
            except Cut as error:
                chunk, cut = None, error
            events = metering.rest(scanner, wire.want_to_fold) if chunk is None else scanner.feed(chunk)[0]
            for event in events:
                if event.data is not None and not meter.is_terminal:
                    kept.append(event)
                    size += len(event.data)
                meter.see(event)
            if meter.windows is not None:
                self._take_windows()
            if meter.has_output:
                self._tab.saw_output()
            if meter.failure is not None:
                return self._refused_folded(response, kept)
            self._brings(events)
            if size > MOST_ANSWER_BYTES:
                raise BadAnswer("the answer is too large to be folded")
            if chunk is None:
                break
            self._observe()
        if not meter.is_terminal:
            raise cut
        try:
            body = wire.fold(kept)
        except ValueError as error:
            raise BadAnswer(str(error)) from error
        await self._record_owner()
        self._close_status()
        return Verdict(answer=self._rewritten(response, response.status, body))

    async def _whole(self, response: Response) -> Verdict:
        """A JSON answer, passed on as it is once it is whole."""
        meter = self._attempt.meter
        parts: list[bytes] = []
        size = 0
        while (chunk := await response.next_chunk()) is not None:
            self._tab.saw_output()
            meter.see_bytes(len(chunk))
            parts.append(chunk)
            size += len(chunk)
            if size > MOST_ANSWER_BYTES:
                raise BadAnswer("the answer is too large")
        body = b"".join(parts)
        meter.see_response(body)
        if meter.failure is not None and not meter.has_output:
            return self._refused_whole(response, body)
        self._keeping.see_whole(body, meter.response_id)
        await self._record_owner()
        self._close_status()
        answer = self._wire.whole(body)
        if answer is not body:
            return Verdict(answer=self._rewritten(response, response.status, answer))
        return Verdict(answer=Answer(response.status, self._passed(response), body))

    # -- refusals

    async def _refused(self, response: Response, credential: Credential) -> Verdict:
        try:
            async with asyncio.timeout(ERROR_SECONDS):
                body = await response.read(MOST_ERROR_BYTES)
        except (UpstreamError, TimeoutError):
            # The status alone says enough.
            body = b""
        failure = await self._judged(response.status, response.headers, body)
        answer = None
        if failure.kind in CLIENTS_OWN and response.status not in ABOUT_ACCOUNTS:
            told = with_envelope(body, shape=self._tab.call.dialect.refusal, status=response.status)
            answer = self._rewritten(response, response.status, told, content_type=type_of(response, body))
        return Verdict(answer=answer, failure=failure, used=credential)

    def _refused_whole(self, response: Response, body: bytes) -> Verdict:
        """An answer that holds nothing but an error, whatever its status says."""
        failure = health.classify(200, response.headers, body, now=self._resources.now().timestamp())
        self._failed(failure)
        answer = Answer(response.status, self._passed(response), body) if failure.kind in CLIENTS_OWN else None
        return Verdict(answer=answer, failure=failure)

    def _refused_folded(self, response: Response, kept: list[Event]) -> Verdict:
        """A stream that failed, early or late; the client has seen nothing of it. What it had is told where its dialect can."""
        verdict = self._refused_in_stream(response, None)
        if verdict.answer is None or not self._attempt.meter.has_output:
            return verdict
        try:
            body = self._wire.fold(kept)
        except ValueError:
            return verdict
        return Verdict(answer=self._rewritten(response, response.status, body), failure=verdict.failure)

    def _refused_in_stream(self, response: Response, relay: StreamRelay | None) -> Verdict:
        """A failing event before any output; the client has seen nothing of it."""
        meter = self._attempt.meter
        data = meter.failure or b"{}"
        failure = health.classify(200, response.headers, data, now=self._resources.now().timestamp())
        self._failed(failure)
        if failure.kind not in CLIENTS_OWN:
            return Verdict(failure=failure)
        code, message = error_of(data)
        if relay is None or self._wire.is_translated:
            status = 502 if failure.kind is Kind.UPSTREAM_ERROR else 400
            kind = "server_error" if status == 502 else "invalid_request_error"
            envelope = {"message": message, "type": kind, "param": None, "code": code}
            body = json.dumps(self._tab.call.dialect.refusal(envelope, status)).encode()
            return Verdict(answer=self._rewritten(response, status, body), failure=failure)
        stream = relay.held()
        if not meter.is_terminal:
            # Clients ignore an `error` event and wait for a terminal one.
            stream += self._failed_event(relay.next_sequence_number(), code, message)
        passed = self._passed(response)
        return Verdict(answer=Answer(200, [pair for pair in passed if pair[0] != b"content-length"], stream), failure=failure)

    async def _broken(self, error: UpstreamError) -> Verdict:
        attempt, tab, meter = self._attempt, self._tab, self._attempt.meter
        attempt.failure = error.reason
        logger.info(
            "upstream attempt broke",
            extra={"account": self._account.uuid, "reason": error.reason, "detail": str(error), "written": error.written},
        )
        if not error.written:
            return self._unreached(error)
        relay = self._relay
        if relay is not None:
            relay.see_rest()
        self._blame(error)
        if meter.is_terminal and relay is not None:
            # All that counts had come, if without its last empty line.
            await relay.finish()
            if relay.has_unended_event:
                await self._downstream.write(b"\n\n")
            self._close_status()
            return Verdict()
        if self._downstream.has_left:
            tab.status = "client_closed"
            return Verdict()
        is_upstreams = not isinstance(error, Restarting)
        tab.status = "upstream_cut" if is_upstreams and (meter.has_output or attempt.http_status) else "failed"
        if relay is not None and relay.is_open:
            await relay.break_off(self._failed_event(relay.next_sequence_number(), STREAM_INCOMPLETE, error.told))
            return Verdict()
        raise self._unanswered(error)

    # -- heads

    def _rewritten(self, response: Response, status: int, body: bytes, content_type: tuple[bytes, bytes] = JSON_TYPE) -> Answer:
        passed = self._passed(response, is_rewritten=True)
        return Answer(status, [content_type, (b"content-length", str(len(body)).encode()), *passed], body)

    def _passed(self, response: Response, *, is_rewritten: bool = False) -> list[tuple[bytes, bytes]]:
        """The upstream's headers for the client. Asked by an alias, it reads its own name in them: Codex takes another one for a
        reroute."""
        call = self._tab.call
        passed = wire_headers.to_client(
            response.raw_headers,
            request_id=call.request_id,
            is_rewritten=is_rewritten,
            asked_model=call.asked_model,
            upstream_model=call.upstream_model,
        )
        return passed + self._tab.told
