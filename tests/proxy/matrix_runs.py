"""Runs cells of the matrix against a gateway: many at once, each in a pool of its own, and compares what came of them."""

import asyncio
import json
import ssl
import time
from collections.abc import Iterable
from itertools import count

import httpx
from django.db import transaction
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from accounts.models import Organization
from billing.models import UsageRecord
from config.redis import sync_client
from proxy.dialects import chat, messages, responses
from routing import live, pools, sticky
from routing.models import PoolAccount
from tests import factories, ports
from tests.flows.tenants import Tenant, in_thread
from tests.proxy import matrix_script
from tests.proxy.conftest import Gateway, eventually, logged
from tests.proxy.matrix import Cell, Moment, expect
from tests.proxy.matrix_compare import Heard, Run, Seat, differences, loaded
from tests.upstream import Received, ScriptedUpstream

LANES = 16
RESETS_IN_SECONDS = 900
SESSION = "session-id"
HEARTBEATS = {
    "responses": responses.HEARTBEAT,
    "chat": chat.HEARTBEAT,
    "messages": messages.HEARTBEAT,
}
ENDS = ("response.completed", "response.failed", "response.incomplete", "error")
ANTHROPIC_TYPES = {400: "invalid_request_error", 429: "rate_limit_error", 502: "api_error"}


class Matrix:
    """The cells' tenant: one organization, a team with a pool and a key for each seat."""

    def __init__(self, gateway: Gateway, upstream: ScriptedUpstream, tenant: Tenant) -> None:
        self._gateway = gateway
        self._upstream = upstream
        self._tenant = tenant
        self._organization: Organization = tenant.organization
        self._numbers = count()
        self._lanes: dict[tuple[str, bool], list[tuple[Seat, Seat]]] = {}
        # One for each seat: a pool of many connections looks through all of them for each request.
        self._clients: dict[int, httpx.AsyncClient] = {}
        self._tls = ssl.create_default_context()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _client(self, seat: Seat) -> httpx.AsyncClient:
        if seat.pool_id not in self._clients:
            self._clients[seat.pool_id] = httpx.AsyncClient(timeout=20, verify=self._tls, trust_env=False)
        return self._clients[seat.pool_id]

    # -- seats

    def _seats(self, kind: str, cells: int, *, is_dead: bool) -> list[tuple[Seat, Seat]]:
        name = (kind, is_dead)
        if name not in self._lanes:
            # One commit: else every account and key is a change of its own, which is told to all processes.
            with transaction.atomic():
                self._lanes[name] = [
                    (self._seat(kind, 1, is_dead=is_dead), self._seat(kind, 2, is_dead=is_dead)) for _ in range(min(LANES, cells))
                ]
                pools.changed(self._organization.pk)
        return self._lanes[name]

    def _seat(self, kind: str, size: int, *, is_dead: bool) -> Seat:
        organization = self._organization
        team = factories.team(organization)
        key = factories.api_key(factories.member(organization, team=team))
        pool = pools.set_pool(organization, factories.unique("pool"), teams=[team], by=None).pool
        accounts, tokens = [], []
        for number in range(size):
            account, token = self._account(kind, is_dead=is_dead and not number)
            # The one that fails comes first.
            PoolAccount.objects.filter(pk=account.pk).update(pool=pool, priority=number)
            accounts.append(account)
            tokens.append(token)
        return Seat(key, pool.pk, accounts, tokens)

    def _account(self, kind: str, *, is_dead: bool) -> tuple[PoolAccount, str]:
        if kind == "chatgpt":
            auth = self._upstream.mint()
            return factories.chatgpt_account(self._organization, auth), auth["tokens"]["access_token"]
        url = f"http://127.0.0.1:{ports.free()}/v1" if is_dead else None
        if url is None and kind == "openai_compatible":
            url = f"{self._upstream.url}/v1"
        return factories.key_account(self._organization, kind=kind, base_url=url)

    # -- running

    async def run(self, cells: Iterable[Cell]) -> list[str]:
        """Runs every cell; what differs from what is expected, a line each."""
        runs: list[Run] = []
        grouped: dict[tuple[str, bool], list[Cell]] = {}
        for cell in cells:
            grouped.setdefault((cell.surface.kind, cell.moment is Moment.CONNECT), []).append(cell)
        for (kind, is_dead), of_kind in grouped.items():
            lanes = await in_thread(self._seats, kind, len(of_kind), is_dead=is_dead)
            for start in range(0, len(of_kind), LANES):
                batch = [
                    self._begun(cell, seat)
                    for cell, lane in zip(of_kind[start : start + LANES], lanes, strict=False)
                    for seat in lane
                ]
                await self._batch(batch)
                runs += batch
        rows = await self._take_rows(runs)
        found = [f"{run.cell.name}, {len(run.seat.accounts)} accounts: {line}" for run in runs for line in differences(run)]
        left = await in_thread(self._left, sum(row.credits for row in rows))
        return found + ([f"left behind: {left}"] if left else [])

    def _begun(self, cell: Cell, seat: Seat) -> Run:
        return Run(cell, seat, f"cell-{next(self._numbers)}", int(time.time()) + RESETS_IN_SECONDS)

    async def _batch(self, runs: list[Run]) -> None:
        """All at once; then, when nothing is under way any more, what became of the accounts."""
        for run in runs:
            if run.cell.moment is not Moment.CONNECT:
                about = {"transport": "upgrade"} if run.cell.moment is Moment.UPGRADE else {}
                answer = matrix_script.script(run.cell, run.resets_at)
                self._upstream.script(answer, repeat=0, **run.seat.match(), **about)
        await asyncio.gather(*(self._carry(run) for run in runs))
        resources = self._gateway.resources
        await eventually(lambda: not resources.running and not resources._tasks, 10)
        await in_thread(self._look, runs)
        # What the process believes of accounts without WebSockets is of this batch, too.
        resources._declined.clear()

    async def _carry(self, run: Run) -> None:
        run.began = time.time()
        try:
            async with asyncio.timeout(20):
                run.heard = await (self._spoken(run) if run.cell.surface.transport == "websocket" else self._posted(run))
        except TimeoutError:
            run.heard = None
        run.ended = time.time()

    async def _posted(self, run: Run) -> Heard:
        dialect = run.cell.surface.dialect
        url = self._gateway.url + matrix_script.PATHS[dialect]
        secret = run.seat.key.secret
        shown = (
            {"x-api-key": secret, "anthropic-version": "2023-06-01"}
            if dialect == "messages"
            else {"authorization": f"Bearer {secret}"}
        )
        headers = {**shown, "content-type": "application/json", SESSION: run.session}
        got = await self._client(run.seat).post(url, headers=headers, content=matrix_script.request(run.cell.surface))
        heard = Heard(got.status_code, dict(got.headers), got.content)
        if got.headers.get("content-type", "").startswith("text/event-stream"):
            beat = HEARTBEATS[dialect]
            heard.beats = got.content.count(beat)
            blocks = got.content.replace(beat, b"").split(b"\n\n")
            data = [block.partition(b"data: ")[2] for block in blocks if block.strip()]
            heard.events = [one.decode() if one == b"[DONE]" else json.loads(one) for one in data]
        return heard

    async def _spoken(self, run: Run) -> Heard:
        url = self._gateway.url.replace("http", "ws", 1) + matrix_script.PATHS["responses"]
        headers = {"authorization": f"Bearer {run.seat.key.secret}", SESSION: run.session}
        heard = Heard(101, {})
        try:
            async with connect(url, additional_headers=headers, proxy=None, compression=None) as socket:
                await socket.send(matrix_script.request(run.cell.surface).decode())
                while not heard.events or heard.events[-1]["type"] not in ENDS:
                    frame = json.loads(await socket.recv())
                    if frame["type"] == "keepalive":
                        heard.beats += 1
                    else:
                        heard.events.append(frame)
        except InvalidStatus as refused:
            response = refused.response
            heard.events = [{"type": "error", "status": response.status_code, "error": loaded(bytes(response.body)), "headers": {}}]
        return heard

    def _look(self, runs: list[Run]) -> None:
        """Reads what became of the accounts and what reached them, and makes them well again."""
        received: dict[str, list[Received]] = {}
        for row in self._upstream.received():
            if row.scripted:
                received.setdefault(row.account or row.token, []).append(row)
        self._upstream.reset()
        accounts = [account for run in runs for account in run.seat.accounts]
        rows = PoolAccount.objects.filter(pk__in=[account.pk for account in accounts])
        statuses = dict(rows.values_list("pk", "status"))
        for run in runs:
            key = live.pool_live_key(run.seat.pool_id, self._organization.pk)
            run.states = [live.state_of(key, account.pk) for account in run.seat.accounts]
            run.statuses = [statuses[account.pk] for account in run.seat.accounts]
            who = run.seat.failing.chatgpt_account_id or run.seat.tokens[0]
            run.received = len(received.get(who, []))
            sync_client().hdel(key, *[f"{account.pk}:{kind}" for account in run.seat.accounts for kind in "cxwhm"])
        out = [pk for pk, status in statuses.items() if status != PoolAccount.Status.ACTIVE]
        if out:
            with transaction.atomic():
                rows.filter(pk__in=out).update(status=PoolAccount.Status.ACTIVE, status_reason="")
                pools.changed(self._organization.pk)

    async def _take_rows(self, runs: list[Run]) -> list[UsageRecord]:
        """Gives each run its rows of the log, by its session."""
        expected = sum(expect(run.cell, has_second=run.seat.has_second).status is not None for run in runs)
        try:
            rows = await logged(self._tenant, expected)
        except AssertionError:
            # Which ones are missing, or too many, is told by cell.
            rows = await in_thread(self._tenant.log)
        by_session: dict[str, list[UsageRecord]] = {}
        for row in rows:
            by_session.setdefault(row.session, []).append(row)
        for run in runs:
            name = sticky.session_key(self._organization.pk, {SESSION: run.session}, None, b"")
            run.rows = by_session.get(name or "", [])
        assert sum(len(run.rows) for run in runs) == len(rows)
        return rows

    def _left(self, credits: int) -> str:
        """What is not as it should be at the end: counters that are what the log says, no hold, no account's slot taken."""
        plan = self._tenant.usage().plan
        client = sync_client()
        now_ms = client.time()[0] * 1000
        taken = 0
        for seat in (seat for lanes in self._lanes.values() for lane in lanes for seat in lane):
            slots = live.pool_live_key(seat.pool_id, self._organization.pk).removesuffix("live") + "slots:"
            taken += sum(int(client.zcount(f"{slots}{account.pk}", now_ms, "+inf")) for account in seat.accounts)
        left = {"spent": plan.used - credits, "held": plan.held, "holds": self._tenant.live_holds(), "slots": taken}
        return ", ".join(f"{name} {value}" for name, value in left.items() if value)
