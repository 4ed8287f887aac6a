"""One upstream attempt: send the request with an account's credentials, relay or fold its answer, say what came of it."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from config.redis import RedisUnavailable, ReplyError
from proxy import headers as wire_headers
from proxy import metering
from proxy.dialects import responses
from proxy.errors import JSON_TYPE, Answer, BadAnswer, Cut, HeadersLate, IdleTooLong, UpstreamError, UpstreamUnavailable
from proxy.lifespan import Resources
from proxy.relay import Downstream, StreamRelay
from proxy.settlement import Attempt, EndedBy, Tab
from proxy.upstream import Request, Response
from routing import credentials, health, selection
from routing.credentials import Credential
from routing.errors import CredentialError
from routing.health import Failure, Kind
from routing.snapshots import CHATGPT

logger = logging.getLogger(__name__)

MOST_ERROR_BYTES = 1024 * 1024
MOST_ANSWER_BYTES = 64 * 1024 * 1024
TAIL_SECONDS = 1.0
"""How long the end of a stream is waited for after its terminal event."""
OBSERVE_SECONDS = 1.0
RENEW_AFTER_SECONDS = 0.005
"""A process killed from then on leaves the price of the input behind; not sooner, so that nothing is written before the request."""
# The client may see these as the upstream said them; all others are about our accounts, not about its request.
CLIENTS_OWN = frozenset({Kind.REQUEST, Kind.CONTEXT, Kind.ANCHOR, Kind.UPSTREAM_ERROR})
WINDOW_HEADER = "x-codex-primary-used-percent"
"""The only window of an account comes in the first slot too."""
ABOUT_ACCOUNTS = frozenset({401, 402, 403, 407, 429})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an attempt.

    Nothing set: the client has its stream. `answer`: what to send it, after the settlement. `failure`: why another account may
    answer instead if it is movable; `answer` is then what to say if none can, or None.
    """

    answer: Answer | None = None
    failure: Failure | None = None
    used: Credential | None = field(default=None, repr=False)


class Sender:
    """Carries one attempt. `client_headers` are the client's, as ASGI gives them."""

    def __init__(
        self,
        tab: Tab,
        attempt: Attempt,
        downstream: Downstream,
        resources: Resources,
        client_headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self._tab = tab
        self._attempt = attempt
        self._downstream = downstream
        self._resources = resources
        self._client_headers = client_headers
        self._account = attempt.lease.account
        self._is_sign_in = self._account.kind == CHATGPT
        self._inspection = tab.call.inspection
        self._relay: StreamRelay | None = None
        self._has_left_early: bool | None = None
        self._loop = asyncio.get_running_loop()
        self._tail_until: float | None = None
        self._observed_at = self._loop.time()

    async def run(self) -> Verdict:
        """Raises what is nobody's answer: cancellation, and faults of our own."""
        attempt = self._attempt
        try:
            credential = await credentials.bearer(self._account, version=attempt.lease.credential_version)
        except CredentialError as error:
            attempt.failure = error.code
            return Verdict(failure=Failure(kind=Kind.TOKEN, movable=True, cooldown_seconds=5.0, code=error.code))
        try:
            async with self._resources.upstream.open(self._request(credential), on_written=self._written) as response:
                attempt.http_status = response.status
                return await self._answered(response, credential)
        except UpstreamError as error:
            return await self._broken(error)

    # -- to the upstream

    def _request(self, credential: Credential) -> Request:
        inspection = self._inspection
        is_streamed = self._is_sign_in or inspection.stream
        return Request(
            method="POST",
            url=f"{self._account.base_url}{'/codex' if self._is_sign_in else ''}{responses.PATH}",
            headers=wire_headers.to_upstream(
                self._client_headers,
                token=credential.token,
                chatgpt_account_id=credential.chatgpt_account_id if self._is_sign_in else None,
                is_streamed=is_streamed,
            ),
            body=responses.for_account(inspection, model=self._tab.call.upstream_model, is_sign_in=self._is_sign_in),
        )

    def _written(self) -> None:
        self._attempt.is_written = True
        self._tab.observe(self._attempt)
        self._loop.call_later(RENEW_AFTER_SECONDS, self._resources.renewer.renew_soon, self._tab.hold)

    def _observe(self) -> None:
        now = self._loop.time()
        if now - self._observed_at >= OBSERVE_SECONDS:
            self._observed_at = now
            self._tab.observe(self._attempt)

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
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_stream = kind == "text/event-stream" or (not kind and (self._is_sign_in or self._inspection.stream))
        if not is_stream:
            return await self._whole(response)
        if self._inspection.stream:
            return await self._stream(response)
        return await self._folded(response)

    async def _note_windows(self, headers: Mapping[str, str]) -> None:
        await health.observe_headers(self._resources.redis, self._attempt.lease.pool, self._account, headers, self._resources.now())

    async def _stream(self, response: Response) -> Verdict:
        """Events to the client as they come."""
        tab, meter = self._tab, self._attempt.meter
        passed = self._passed(response)
        # A stream that we must end ourselves has another length.
        head = (response.status, [pair for pair in passed if pair[0] != b"content-length"])
        relay = self._relay = StreamRelay(self._downstream, meter, head, before_open=self._record_owner)
        while (chunk := await self._next(response, relay)) is not None:
            await relay.feed(chunk)
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
        if not meter.is_terminal:
            raise Cut("the stream ended without a terminal event")
        self._close_status()
        return Verdict()

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
        meter = self._attempt.meter
        scanner = metering.scanner(is_folded=True)
        items: list[bytes] = []
        terminal: bytes | None = None
        size = 0
        cut = Cut("the stream ended without a terminal event")
        while not meter.is_terminal:
            try:
                chunk = await response.next_chunk()
            except Cut as error:
                chunk, cut = None, error
            events = metering.rest(scanner) if chunk is None else scanner.feed(chunk)[0]
            for event in events:
                if event.name == metering.ITEM_DONE and event.data is not None:
                    items.append(event.data)
                    size += len(event.data)
                elif event.name in metering.TERMINAL and not meter.is_terminal:
                    terminal = event.data
                meter.see(event)
            if meter.has_output:
                self._tab.saw_output()
            if meter.failure is not None and not meter.has_output:
                return self._refused_in_stream(response, None)
            if size > MOST_ANSWER_BYTES:
                raise BadAnswer("the answer is too large to be folded")
            if chunk is None:
                break
            self._observe()
        if terminal is None:
            raise cut
        try:
            body = responses.fold(terminal, items)
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
        await self._record_owner()
        self._close_status()
        passed = self._passed(response)
        return Verdict(answer=Answer(response.status, passed, body))

    def _saw_terminal(self) -> None:
        """A client that leaves from now on has had all it wanted: Codex does not wait for the connection to end."""
        if self._has_left_early is None:
            self._has_left_early = self._downstream.has_left

    def _close_status(self) -> None:
        """The answer is whole. One that its client did not wait for says so, though its usage is the upstream's own."""
        self._saw_terminal()
        self._tab.status = "client_closed" if self._has_left_early else self._attempt.meter.status or "ok"

    async def _record_owner(self) -> None:
        """Which account holds the response, before the client hears its id. Sign-in accounts store none."""
        meter = self._attempt.meter
        if self._is_sign_in or self._inspection.store is False or not meter.response_id:
            return
        command = selection.owner_command(self._attempt.lease.pool, meter.response_id, self._account.account_id)
        try:
            await self._resources.redis.call(*command)
        except (RedisUnavailable, ReplyError):
            logger.warning("owner of a response not recorded", extra={"account": self._account.uuid})

    # -- refusals

    async def _refused(self, response: Response, credential: Credential) -> Verdict:
        try:
            body = await response.read(MOST_ERROR_BYTES)
        except UpstreamError:
            # The status alone says enough.
            body = b""
        now = self._resources.now()
        failure = health.classify(response.status, response.headers, body, now=now.timestamp())
        self._attempt.failure = failure.kind.value
        self._attempt.ended_by = EndedBy.UPSTREAM
        self._tab.status = "failed"
        if response.status == 429:
            await self._quietly(self._note_windows(response.headers))
        else:
            self._resources.spawn(self._note_windows(response.headers))
        answer = None
        if failure.kind in CLIENTS_OWN and response.status not in ABOUT_ACCOUNTS:
            answer = self._rewritten(response, response.status, _with_envelope(body), content_type=_type_of(response, body))
        return Verdict(answer=answer, failure=failure, used=credential)

    def _refused_in_stream(self, response: Response, relay: StreamRelay | None) -> Verdict:
        """A failing event before any output; the client has seen nothing."""
        meter = self._attempt.meter
        data = meter.failure or b"{}"
        failure = health.classify(200, response.headers, data, now=self._resources.now().timestamp())
        self._attempt.failure = failure.kind.value
        self._attempt.ended_by = EndedBy.UPSTREAM
        self._tab.status = "failed"
        if failure.kind not in CLIENTS_OWN:
            return Verdict(failure=failure)
        code, message = _error_of(data)
        if relay is None:
            status = 502 if failure.kind is Kind.UPSTREAM_ERROR else 400
            kind = "server_error" if status == 502 else "invalid_request_error"
            body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
            return Verdict(answer=self._rewritten(response, status, json.dumps(body).encode()), failure=failure)
        stream = relay.held()
        if not meter.is_terminal:
            # Clients ignore an `error` event and wait for a terminal one.
            stream += self._failed_event(relay.next_sequence_number(), code, message)
        passed = self._passed(response)
        return Verdict(answer=Answer(200, [pair for pair in passed if pair[0] != b"content-length"], stream), failure=failure)

    async def _broken(self, error: UpstreamError) -> Verdict:
        """The connection failed. What was written is never sent again (it may run); what the client has begun is ended."""
        attempt, tab, meter = self._attempt, self._tab, self._attempt.meter
        attempt.failure = error.reason
        logger.info(
            "upstream attempt broke",
            extra={"account": self._account.uuid, "reason": error.reason, "detail": str(error), "written": error.written},
        )
        if not error.written:
            return Verdict(failure=health.unreachable(written=False))
        if self._relay is not None:
            self._relay.see_rest()
        if isinstance(error, HeadersLate | IdleTooLong):
            attempt.ended_by = EndedBy.US
        elif self._downstream.has_left:
            attempt.ended_by = EndedBy.CLIENT
        elif attempt.ended_by is EndedBy.NOBODY:
            attempt.ended_by = EndedBy.UPSTREAM
        if meter.is_terminal and self._relay is not None:
            # All that counts had come, if without its last empty line.
            await self._relay.finish()
            if self._relay.has_unended_event:
                await self._downstream.write(b"\n\n")
            self._close_status()
            return Verdict()
        if self._downstream.has_left:
            tab.status = "client_closed"
            return Verdict()
        tab.status = "upstream_cut" if meter.has_output or attempt.http_status else "failed"
        if self._relay is not None and self._relay.is_open:
            event = self._failed_event(
                self._relay.next_sequence_number(), "stream_incomplete", "The upstream ended the stream before it was complete."
            )
            await self._relay.break_off(event)
            return Verdict()
        failure = health.unreachable(written=True)
        self._resources.spawn(health.report(self._resources.redis, attempt.lease.pool, self._account, failure))
        raise UpstreamUnavailable("The upstream did not answer. The request may have run and was not sent again.")

    def _failed_event(self, sequence_number: int, code: str, message: str) -> bytes:
        meter = self._attempt.meter
        return responses.failed_event(
            response_id=meter.response_id or f"resp_{self._tab.call.request_id.removeprefix('req_').lower()}",
            model=meter.model or self._inspection.model,
            created_at=self._tab.hold.admitted_at,
            sequence_number=sequence_number,
            code=code,
            message=message,
        )

    def _rewritten(self, response: Response, status: int, body: bytes, content_type: tuple[bytes, bytes] = JSON_TYPE) -> Answer:
        passed = self._passed(response, is_rewritten=True)
        return Answer(status, [content_type, (b"content-length", str(len(body)).encode()), *passed], body)

    def _passed(self, response: Response, *, is_rewritten: bool = False) -> list[tuple[bytes, bytes]]:
        """The upstream's headers for the client. Asked by an alias, it reads its own name in them: Codex takes another one for a
        reroute."""
        call = self._tab.call
        asked = call.inspection.model if call.alias_of else None
        return wire_headers.to_client(
            response.raw_headers, request_id=call.request_id, is_rewritten=is_rewritten, asked_model=asked
        )

    async def _quietly(self, work: "asyncio.Future[None] | object") -> None:
        try:
            await work  # type: ignore[misc]
        except (RedisUnavailable, ReplyError):
            logger.warning("windows of an account not noted", extra={"account": self._account.uuid})


def _type_of(response: Response, body: bytes) -> tuple[bytes, bytes]:
    value = response.headers.get("content-type")
    return JSON_TYPE if value is None or body.lstrip().startswith(b"{") else (b"content-type", value.encode("latin-1"))


def _with_envelope(body: bytes) -> bytes:
    """An upstream's `{"detail": ...}` as the error envelope that SDKs read; every other body as it is."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(value, dict) or "error" in value or "detail" not in value:
        return body
    detail = value["detail"]
    code = detail.get("code") if isinstance(detail, dict) else None
    message = detail if isinstance(detail, str) else json.dumps(detail)
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}).encode()


def _error_of(data: bytes) -> tuple[str, str]:
    """Code and message of a failing event."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = {}
    found = value if isinstance(value, dict) else {}
    for holder in (found.get("response"), found):
        if isinstance(holder, dict) and isinstance(holder.get("error"), dict):
            found = holder["error"]
            break
    return str(found.get("code") or "server_error")[:80], str(found.get("message") or "The upstream failed.")[:2000]
