"""One proxied request from its key to its settlement, over whichever transport and in whichever dialect: read this file first.

    read (key in memory, dialect) -> rate, estimate -> admit + sticky + pool state (one round trip)
    -> select (one round trip) -> send, hold the first event, relay -> settle, give the slot back

Whatever happens between the admission and the last byte, the hold is settled (or released, where nothing was sent) exactly once.
How a request comes in and its answer goes out is its transport's: `proxy.exchange` for HTTP, `proxy.sockets` for WebSockets.
"""

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from django.conf import settings
from django.db import Error as DatabaseTrouble

from billing.errors import ModelUnknown, ModelUnpriced
from config import logging as weir_logging
from config.errors import DomainError
from proxy import anchors, auth, continuity, errors, estimate, intake, permits, request_ids, settlement, told, turns
from proxy.attempt import Transport, Verdict, failed_event
from proxy.auth import Caller
from proxy.dialects.inspection import Inspection
from proxy.dialects.wire import Dialect, Wire
from proxy.errors import Answer
from proxy.lifespan import Resources
from proxy.relay import Downstream
from proxy.settlement import Call, EndedBy, Tab
from proxy.upstream_errors import error_of, is_stream
from quotas import admission, refusal_log
from quotas.admission import Admission, Amount, Settled
from quotas.errors import Stale
from routing import credentials, health, selection, sticky
from routing.choice import Live
from routing.errors import CredentialError, NoAccountAvailable, PoolBusy, RefreshDeferred, SelectionError
from routing.health import Failure, Kind
from routing.selection import Lease
from routing.snapshots import ANTHROPIC, CHATGPT, PoolSnapshot

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MAX_RELOADS = 10
"""Many accounts that join, or are signed out, are many changes in a row."""
SETTLE_WAIT_SECONDS = 1.0
"""The answer's end waits this long for its settlement, so that who asks next sees it; then it is told without."""
CONNECT_PAUSE_SECONDS = 0.05

Read = Callable[[Resources], Awaitable[Inspection]]


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


def _share(left: int, *, is_last: bool) -> int:
    """Of the request's attempts that are left, those of one model: one is kept for a model that may serve in its place."""
    return left if is_last else max(1, left - 1)


class Engine:
    """One request. `pairs` and `headers` are the client's headers, as they came and by name."""

    def __init__(
        self,
        dialect: Dialect,
        transport: Transport,
        downstream: Downstream,
        *,
        request_id: str,
        headers: Mapping[str, str],
        pairs: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self._dialect = dialect
        self._transport = transport
        self._downstream = downstream
        self._request_id = request_id
        self._began = time.monotonic()
        self._headers = headers
        self._pairs = pairs
        self._caller: Caller | None = None
        self._model = ""
        self._tab: Tab | None = None
        self._wire: Wire | None = None
        self._most = MAX_ATTEMPTS
        """Attempts that the model at hand may take."""
        self._first_word: Answer | None = None

    async def run(self, resources: Resources, read: Read) -> None:
        """Answers, whatever happens. `read` brings the request in; it may raise DomainError, or `intake.ClientGone`."""
        resources.enter(self)
        answer: Answer | None = None
        refusal: DomainError | None = None
        try:
            answer = await self._respond(resources, read)
        except (intake.ClientGone, ClientLeft):
            return
        except DomainError as error:
            # Its traceback would keep this frame, and this frame it, with all of the request, until the collector comes by.
            refusal = error.with_traceback(None)
            if error.status >= 500:
                logger.warning("request refused", extra={"code": error.code, "reason": error.facts.get("reason")})
            answer = self._refusal(resources, error)
        except DatabaseTrouble:
            logger.warning("request refused: the database does not answer", exc_info=True)
            refusal = errors.Degraded("The gateway cannot read its configuration at the moment. Try again in a few seconds.")
            answer = self._refusal(resources, refusal)
        except Exception:
            logger.exception("request failed")
            answer = self._refusal(resources, errors.InternalError("The gateway failed. The request was not completed."))
        finally:
            resources.leave(self)
        if answer is not None:
            await self._answer(answer)
        await self._downstream.end()
        if refusal is not None:
            self._note(resources, refusal)

    def _refusal(self, resources: Resources, error: DomainError) -> Answer:
        answer = errors.answer(error, now=resources.now(), request_id=self._request_id, shape=self._dialect.refusal)
        if error.status == 429:
            answer.headers.extend(told.refusal_headers(error) or (self._tab.told if self._tab is not None else ()))
        return answer

    async def _answer(self, answer: Answer) -> None:
        """A whole answer, or what is left to say of it once a heartbeat has begun a stream: its events, or how it failed."""
        if not self._downstream.is_started:
            await self._downstream.answer(answer)
        elif not self._downstream.has_content and self._tab is not None and self._wire is not None:
            if answer.status == 200 and is_stream(answer):
                await self._downstream.write(answer.body)
                return
            code, message = error_of(answer.body)
            await self._downstream.write(failed_event(self._tab, self._wire, sequence_number=0, code=code, message=message))

    def _note(self, resources: Resources, refusal: DomainError) -> None:
        """For the holder of the key, if it is known whose it was. The client has its answer; nothing waits for this."""
        reason = ""
        caller = self._caller
        if isinstance(refusal, errors.InvalidApiKey):
            caller, reason = refusal.caller, refusal.told
        if caller is not None:
            refusal_log.note(resources.redis, caller.snapshot, caller.key, refusal, model=self._model, told=reason)

    async def identify(self, resources: Resources, *, at_least: int = 0) -> Caller:
        """Whose request it is. Raises InvalidApiKey, Degraded."""
        self._caller = await auth.identify(
            self._headers,
            now=resources.now(),
            redis=resources.redis,
            at_least=at_least,
            takes_x_api_key=ANTHROPIC in self._dialect.KINDS,
        )
        return self._caller

    async def _respond(self, resources: Resources, read: Read) -> Answer | None:
        """The whole answer to send, or None if the client has its stream. Raises DomainError."""
        if resources.is_draining:
            raise errors.Draining()
        inspection = await read(resources)
        caller = self._caller
        assert caller is not None, "`read` identifies the caller"
        self._model = inspection.model
        self._most = _share(MAX_ATTEMPTS, is_last=inspection.model not in caller.snapshot.routing.fallbacks)
        try:
            return await self._serve(resources, caller, inspection, inspection.model)
        except SelectionError as error:
            # The newest configuration that was heard of; what is held by one account has no other model in its place.
            caller = self._caller or caller
            in_place = caller.snapshot.routing.fallbacks.get(inspection.model, ())
            if not in_place or error.is_anchored or self._downstream.has_content:
                raise
            return await self._serve_in_place(resources, caller, inspection, in_place, error)

    async def _serve_in_place(
        self, resources: Resources, caller: Caller, inspection: Inspection, models: Sequence[str], refused: SelectionError
    ) -> Answer | None:
        """No account can serve the asked model: those that the organization's rule names are tried in order, each checked, counted
        and priced as itself. Where none can either, what the asked one's upstream said, else raises `refused`."""
        spent, counted = 0, None
        for position, model in enumerate(models, start=1):
            if self._tab is not None and self._tab is not counted:
                spent, counted = spent + len(self._tab.attempts), self._tab
            if spent >= MAX_ATTEMPTS:
                break
            self._most = _share(MAX_ATTEMPTS - spent, is_last=position == len(models))
            self._request_id = request_ids.new()
            try:
                return await self._serve(resources, caller, inspection, model)
            except (SelectionError, errors.ModelNotAllowed, ModelUnknown, ModelUnpriced):
                if self._downstream.has_content:
                    raise
        if self._first_word is not None:
            return self._first_word
        raise refused

    async def _serve(self, resources: Resources, caller: Caller, inspection: Inspection, model: str) -> Answer | None:
        """Admits the request for `model` and carries it. Raises DomainError; then nothing is held."""
        for _ in range(MAX_RELOADS):
            try:
                call, pool, admitted = await self._admit(resources, caller, inspection, model)
                break
            except Stale as stale:
                # Something has changed: the key itself may be gone.
                caller = await self.identify(resources, at_least=stale.version)
        else:
            raise errors.Degraded("The configuration is changing. Try again in a few seconds.")
        tab = self._tab = Tab(call, admitted.hold)
        with weir_logging.context(organization_id=caller.snapshot.organization_id):
            return await self._carry(resources, tab, pool, admitted)

    async def _admit(
        self, resources: Resources, caller: Caller, inspection: Inspection, model: str
    ) -> tuple[Call, PoolSnapshot, Admission]:
        """Prices, estimates and holds; brings the pool's live state along. Raises DomainError or Stale, and then holds nothing."""
        try:
            now = resources.now()
            rate = permits.check(caller, inspection, model=model, at=now)
            subscription = permits.subscription_of(caller, at=now)
            pool = selection.pool_for(
                caller.snapshot, caller.key, plan=subscription.plan_slug if subscription is not None else None
            )
        except DomainError:
            await admission.check_newest(resources.redis, caller.snapshot)
            raise
        may_be_sign_in = CHATGPT in self._dialect.KINDS
        has_sign_in_account = may_be_sign_in and any(account.kind == CHATGPT for account in pool.accounts)
        guess = estimate.estimate(
            inspection, rate, has_sign_in_account=has_sign_in_account, organization_id=caller.snapshot.organization_id
        )
        session_key = sticky.session_key(
            caller.snapshot.organization_id, self._headers, inspection.prompt_cache_key, inspection.opening
        )
        name = caller.snapshot.billing.rates.upstream_name(model, now)
        call = Call(
            request_id=self._request_id,
            caller=caller,
            dialect=self._dialect,
            inspection=inspection,
            rate=rate,
            estimate=guess,
            session_key=session_key,
            began=self._began,
            model=model,
            alias_of=name if name != model else "",
            is_inside_turn=turns.is_inside(self._headers, inspection.fields),
            anchors=anchors.anchors_of(inspection, self._headers),
        )
        admitted = await admission.admit(
            resources.redis,
            caller.snapshot,
            caller.key,
            request_id=self._request_id,
            need=Amount(guess.credits, guess.tokens),
            about=settlement.about(caller, inspection, session_key, model=model),
            model=model,
            alongside=selection.live_commands(pool, session_key, call.anchors, member_id=caller.key.member_id),
        )
        return call, pool, admitted

    async def _carry(self, resources: Resources, tab: Tab, pool: PoolSnapshot, admitted: Admission) -> Answer | None:
        """From the hold to its settlement."""
        resources.renewer.add(tab.hold)
        stop_watching: Callable[[], object] | None = None
        try:
            tab.told = told.headers(admitted)
            # The client's leaving shortens this leash: to nothing before anything was sent, else to the grace in which the
            # upstream may still deliver its terminal event.
            async with asyncio.timeout(None) as leash:
                loop = asyncio.get_running_loop()

                def left() -> None:
                    waits = tab.is_written and not tab.is_answered
                    leash.reschedule(loop.time() + (settings.DISCONNECT_GRACE_SECONDS if waits else 0.0))

                stop_watching = self._downstream.begin_watch(left)
                live = selection.read_live(pool, admitted.replies, tab.call.anchors)
                live = await continuity.resolved(resources, pool, live)
                return await self._attempts(resources, tab, pool, live)
        except TimeoutError:
            if not leash.expired():
                raise
            if not tab.is_answered:
                # Also after a refusal: nobody waits for the attempts that could follow it.
                tab.status = "client_closed"
            # After the terminal event it had all it wanted: Codex does not wait for the connection to end.
            self._end(tab, EndedBy.CLIENT, tab.attempts[-1].meter.status if tab.is_answered else "client_closed")
            raise ClientLeft from None
        except ClientLeft:
            tab.status = "client_closed"
            raise
        except DomainError:
            tab.status = tab.status or "failed"
            raise
        except BaseException:
            # Cancelled by the server, or a fault of ours: what was sent may have run.
            self._end(tab, EndedBy.US, "failed")
            raise
        finally:
            if stop_watching is not None:
                stop_watching()
            # Begun before anything is awaited: a second cancellation, or a closing loop, finds it under way.
            settling = self._settle(resources, tab)
            resources.keep(settling)
            await asyncio.wait({settling}, timeout=SETTLE_WAIT_SECONDS)

    @staticmethod
    def _end(tab: Tab, by: EndedBy, status: str) -> None:
        if tab.attempts and tab.attempts[-1].ended_by is EndedBy.NOBODY and not tab.attempts[-1].meter.is_terminal:
            tab.attempts[-1].ended_by = by
        tab.status = tab.status or status

    # -- attempts

    async def _attempts(self, resources: Resources, tab: Tab, pool: PoolSnapshot, live: Live) -> Answer | None:
        """Tries accounts until one answers: while attempts are left, and only until the client has seen something."""
        excluded: set[int] = set()
        unreached: set[int] = set()
        last: Verdict | None = None
        while len(tab.attempts) < self._most:
            if self._downstream.has_left:
                raise ClientLeft
            try:
                lease = await self._select(resources, tab, pool, live, excluded, unreached)
            except SelectionError:
                if last is not None and last.answer is not None:
                    return self._last_word(tab, last.answer)
                raise
            if unreached and lease.account.account_id not in unreached:
                # Another one may do: the next requests need not find out again.
                self._rest(resources, pool, unreached)
            resources.leases.add(lease)
            try:
                last = await self._try(resources, tab, lease)
            finally:
                resources.leases.give_back(lease)
            failure = last.failure
            if failure is not None and failure.code == continuity.UNREADABLE:
                await continuity.stay(resources, lease)
            if failure is None or not failure.movable or self._downstream.has_content:
                if failure is not None:
                    # Nobody waits for it; the next request is better off elsewhere.
                    resources.spawn(health.report(resources.redis, pool, lease.account, failure, version=last.version))
                return last.answer
            if failure.kind is Kind.UNREACHABLE:
                unreached.add(lease.account.account_id)
                await asyncio.sleep(CONNECT_PAUSE_SECONDS)
                continue
            excluded.add(lease.account.account_id)
            booked_ms = await health.report(resources.redis, pool, lease.account, failure, version=last.version)
            if booked_ms is not None:
                tab.hear_clock(booked_ms)
        assert last is not None
        assert last.failure is not None
        return await self._give_up(resources, tab, pool, live, excluded, unreached, last)

    def _last_word(self, tab: Tab, answer: Answer) -> Answer:
        """What the last upstream said, where no other account is left to ask. Raises NoAccountAvailable if others may serve in the
        model's place; of the asked model the word is kept for when they do not."""
        call = tab.call
        if call.anchors or not call.snapshot.routing.fallbacks.get(call.inspection.model):
            return answer
        if call.model == call.inspection.model:
            self._first_word = answer
        raise NoAccountAvailable("model_not_served")

    async def _try(self, resources: Resources, tab: Tab, lease: Lease) -> Verdict:
        """One account; once more on the same one if its token may only have been old."""
        verdict = await self._send(resources, tab, lease)
        failure = verdict.failure
        if failure is None or not failure.refresh or lease.account.kind != CHATGPT or len(tab.attempts) >= self._most:
            return verdict
        try:
            await credentials.refresh_async(lease.account, used=verdict.used)
        except CredentialError as error:
            logger.info("token not renewed", extra={"account": lease.account.uuid, "code": error.code})
            if isinstance(error, RefreshDeferred):
                # The issuer could not say; the sign-in may be good once it can.
                return dataclasses.replace(verdict, failure=dataclasses.replace(failure, sign_in=False))
            return verdict
        if self._downstream.has_left:
            raise ClientLeft
        return await self._send(resources, tab, lease)

    async def _send(self, resources: Resources, tab: Tab, lease: Lease) -> Verdict:
        call = tab.call
        wire = self._wire = call.dialect.wire(call.inspection, model=call.upstream_model, kind=lease.account.kind)
        attempt = tab.begin(lease, wire.meter)
        return await self._transport(tab, attempt, wire, self._downstream, resources, self._pairs).run()

    async def _select(
        self, resources: Resources, tab: Tab, pool: PoolSnapshot, live: Live, excluded: set[int], unreached: set[int]
    ) -> Lease:
        """An account that has not failed this request. One that could not be reached is tried again if there is no other:
        it may have been this one connection. Raises SelectionError."""
        try:
            return await self._lease(resources, tab, pool, live, frozenset(excluded | unreached))
        except SelectionError:
            if not unreached:
                raise
        return await self._lease(resources, tab, pool, live, frozenset(excluded))

    async def _lease(self, resources: Resources, tab: Tab, pool: PoolSnapshot, live: Live, excluded: frozenset[int]) -> Lease:
        call = tab.call
        return await selection.select(
            resources.redis,
            pool,
            live,
            request_id=call.request_id,
            model=call.upstream_model,
            tier=call.inspection.service_tier,
            effort=call.inspection.reasoning_effort,
            kinds=self._kinds(call, pool),
            session_key=call.session_key,
            member_id=call.caller.key.member_id,
            is_inside_turn=call.is_inside_turn,
            is_bound=lambda: turns.is_bound(call.inspection.fields),
            recache=turns.recache(call.rate, call.estimate.input_tokens),
            most=None if turns.has_tools(call.inspection.fields) else call.estimate.credits,
            exclude=excluded,
            now_ms=tab.server_now_ms(),
            rng=random.random,
        )

    @staticmethod
    def _kinds(call: Call, pool: PoolSnapshot) -> frozenset[str]:
        """Which accounts may be tried. Where the pool has none that can serve this very request, one of the others says by its wire
        what it cannot do."""
        only = call.inspection.kinds
        is_any = only is not None and any(account.kind in only for account in pool.accounts)
        return only if only is not None and is_any else call.dialect.KINDS

    async def _give_up(
        self,
        resources: Resources,
        tab: Tab,
        pool: PoolSnapshot,
        live: Live,
        excluded: set[int],
        unreached: set[int],
        last: Verdict,
    ) -> Answer | None:
        """The right refusal after the last attempt. Raises DomainError unless an upstream's own answer is passed on."""
        failure: Failure | None = last.failure
        if last.answer is not None:
            return self._last_word(tab, last.answer)
        if failure is not None and failure.kind is Kind.UNREACHABLE:
            self._rest(resources, pool, unreached)
            raise errors.UpstreamUnavailable("The upstream cannot be reached.")
        # Every attempt met an account that cannot serve now. If all are such, selection knows when that ends.
        lease = await self._lease(resources, tab, pool, live, frozenset(excluded | unreached))
        resources.leases.give_back(lease)
        raise PoolBusy(1, message="The accounts tried cannot serve at the moment. Try again shortly.")

    @staticmethod
    def _rest(resources: Resources, pool: PoolSnapshot, unreached: set[int]) -> None:
        for account in pool.accounts:
            if account.account_id in unreached:
                resources.spawn(health.report(resources.redis, pool, account, health.unreachable(written=False)))

    # -- the end

    def _settle(self, resources: Resources, tab: Tab) -> "asyncio.Task[Settled]":
        """Ends the hold, exactly once."""
        resources.renewer.discard(tab.hold)
        if not tab.is_written:
            self._book(resources, tab)
            return admission.releasing(resources.redis, tab.hold)
        try:
            amount, body = tab.owed()
        except Exception:
            # A hold must end even if its bill cannot be written: at what was observed.
            logger.exception("bill not written")
            call = tab.call
            amount = tab.hold.observed
            body = settlement.about(call.caller, call.inspection, call.session_key, model=call.model)
        self._book(resources, tab)
        if tab.call.inspection.is_warm_up and tab.status == "ok" and not amount.credits and not amount.tokens:
            # It asked for nothing and had nothing: no turn, no request of its key's limits, no row of the log. One that failed is.
            return admission.releasing(resources.redis, tab.hold)
        return admission.settling(resources.redis, tab.hold, amount=amount, body=body)

    @staticmethod
    def _book(resources: Resources, tab: Tab) -> None:
        """Tells routing what each account spent, and whether the session's turn goes on; in one write with the settlement."""
        for attempt in tab.attempts:
            is_last = attempt is tab.attempts[-1]
            if is_last or attempt.credits:
                resources.keep(
                    selection.book(
                        resources.redis, attempt.lease, credits=attempt.credits, then=attempt.hold_then if is_last else "go"
                    )
                )
