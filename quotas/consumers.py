"""The live socket of every page: what is left, what runs, how many alerts are open, and what is newer than what the page shows."""

import asyncio
import json
import logging
import time
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.db import SessionStore
from django.http import Http404
from django.urls import path
from django.utils import translation
from django.utils.translation import gettext as _

from accounts import languages, missing, permissions, tenancy, vouching
from accounts.identity import SignInElsewhere
from accounts.models import Member, User
from accounts.permissions import Action, Reach
from config import live_marks, scope, snapshot
from config.clock import utc_now
from config.errors import DomainError
from config.redis import RedisUnavailable
from config.snapshot import Snapshot
from quotas import live, remaining, running
from quotas.live import Stored
from quotas.remaining import Meter, Standing

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 10.0
"""So often at least the page's right to hear is asked again, and the database for what is newer; at once when usage moves."""
TICK_SECONDS = 2.0
"""So often Redis is asked what is held and what runs: no SQL."""
PAUSE_SECONDS = 1.0
"""However often usage moves, a page is not told more often than this."""
FOREIGN, FORBIDDEN, CHANGED = 4404, 4403, 4409
ROUTE = "o/<slug:slug>/live"
"""Below `/ws/`."""


class _Ended(Exception):
    """The page may not be shown any more; `code` says why. `is_strange`: the organization is none of the person's."""

    def __init__(self, code: int, *, is_strange: bool = False) -> None:
        super().__init__(code)
        self.code = code
        self.is_strange = is_strange


class LiveConsumer(AsyncWebsocketConsumer):
    """`/ws/o/<slug>/live?page=<name>` (`live.PAGES`): tells the page how things stand; takes nothing from it.

    `{"type": "live", "alerts", "marks": {…}}`; for pages about usage also `"running"`, how many requests run in the reader's reach;
    for pages with meters `"left"`, the number of the first sentence, `"deciding"`, the limit it is about, and `"meters"`, each
    `{"id", "left", "held", "used", "percent", "left_share", "held_share", "level"}`, texts as the page writes them.
    `{"type": "unavailable", "message"}` when the numbers cannot be read. `{"type": "still"}` when nothing has moved for a while.
    Closes with 4404 for an organization that is not (or no more) one's own and for a page that is none, 4403 for a role without the
    page, 4409 when the member's role or team has become another one: who asks again is told by the new one.
    """

    member: Member | None = None
    page: str = ""
    task: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        # Accepted first: a browser shows no code of a handshake that was refused.
        await self.accept()
        try:
            self.page = _page(self.scope)
            self.member = await database_sync_to_async(self._first_admitted)()
        except _Ended as ended:
            await self.close(code=ended.code)
            return
        self.moved = asyncio.Event()
        await self.channel_layer.group_add(live.group(self.member.organization_id), self.channel_name)
        self.task = asyncio.create_task(self._tell())

    async def disconnect(self, code: int) -> None:
        if self.task is not None:
            self.task.cancel()
        if self.member is not None:
            await self.channel_layer.group_discard(live.group(self.member.organization_id), self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Nothing is asked of this socket."""

    async def usage_moved(self, message: dict[str, Any]) -> None:
        self.moved.set()

    async def _tell(self) -> None:
        # Holds for this task and for the threads that it asks: numbers and sentences are as the page has them.
        translation.activate(languages.of_socket(self.scope, self.member.user if self.member is not None else None))
        told, stored, version, asked_at = "", None, 0, 0.0
        while True:
            is_due = stored is None or self.moved.is_set() or time.monotonic() - asked_at >= REFRESH_SECONDS
            self.moved.clear()
            try:
                # Held from now on, so that this process hears of changes of the configuration (`SnapshotCache.listen`).
                held = await snapshot.cache().get(self._organization_id) if self.page else None
                if is_due or (held is not None and held.version != version):
                    stored, is_due = await database_sync_to_async(self._stored)(), True
                    version, asked_at = (held.version if held is not None else 0), time.monotonic()
                assert stored is not None
                text = await self._text(stored)
                if text != told and not is_due:
                    # Nobody hears more who may not any more.
                    await database_sync_to_async(self._admitted)()
            except _Ended as ended:
                await self.close(code=ended.code)
                return
            except Exception:
                # The page says that it is not live, and asks again.
                logger.exception("live numbers not read")
                text, stored = json.dumps({"type": "unavailable", "message": _("The numbers did not arrive.")}), None
            if text != told:
                await self.send(text_data=text)
                told = text
            elif is_due:
                await self.send(text_data='{"type": "still"}')
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                async with asyncio.timeout(TICK_SECONDS - PAUSE_SECONDS):
                    await self.moved.wait()
            except TimeoutError:
                pass

    @property
    def _organization_id(self) -> int:
        assert self.member is not None
        return self.member.organization_id

    async def _text(self, stored: Stored) -> str:
        assert self.member is not None
        told: dict[str, Any] = {"type": "live", "alerts": stored.open_alerts}
        marks = dict(stored.marks)
        page = live.PAGES[self.page]
        try:
            if page.has_meters:
                is_whole = self.page == "overview" and permissions.reach(self.member, Action.SEE_USAGE) is not Reach.OWN
                told |= numbers(await remaining.live_standing(self.member, now=utc_now(), is_whole=is_whole))
                # The first sentence names the limit that decides; another one is another sentence.
                marks["deciding"] = live.mark(told["deciding"])
            loaded = await snapshot.cache().get(self._organization_id) if self.page == "pool" else None
            if page.is_about_usage or loaded is not None:
                told_by_redis = await asyncio.to_thread(self._of_redis, loaded)
                told |= told_by_redis.pop("told", {})
                marks |= told_by_redis
        except DomainError as error:
            return json.dumps({"type": "unavailable", "message": error.message})
        except RedisUnavailable:
            return json.dumps({"type": "unavailable", "message": _("The counters do not answer.")})
        return json.dumps({**told, "marks": marks})

    def _of_redis(self, loaded: Snapshot | None) -> dict[str, Any]:
        """Marks; and under `told` what the message itself says."""
        if loaded is not None:
            return {self.page: live.mark(live_marks.read(self.page, loaded))}
        assert self.member is not None
        reach = permissions.reach(self.member, Action.SEE_REQUESTS)
        if reach is Reach.NONE:
            return {}
        about = live.about(self.member, self.page)
        rows = running.seen(running.of(self._organization_id), about)
        return {"running": live.mark([row.request_id for row in rows]), "told": {"running": len(rows)}}

    def _first_admitted(self) -> Member:
        try:
            return self._admitted()
        except _Ended as ended:
            user = vouching.user_of(self._session)
            if ended.is_strange and isinstance(user, User):
                with scope.everything():
                    missing.note(None, user, route=f"ws/{ROUTE}", method="GET", ids={})
            raise

    @property
    def _session(self) -> SessionStore:
        """Read anew for each look at it."""
        return SessionStore(self.scope["session"].session_key)

    def _admitted(self) -> Member:
        """Asked again each time: a page ends with the membership, with the session, and with the account or its password; and with
        the role it was made for."""
        try:
            user = vouching.user_of(self._session)
            member = tenancy.membership(user, self.scope["url_route"]["kwargs"]["slug"])
        except (tenancy.SecondFactorMissing, SignInElsewhere):
            raise _Ended(FOREIGN) from None
        except Http404:
            raise _Ended(FOREIGN, is_strange=True) from None
        action = live.PAGES[self.page].action
        if action is not None and permissions.reach(member, action) is Reach.NONE:
            raise _Ended(FORBIDDEN)
        if self.member is not None and (self.member.role, self.member.team_id) != (member.role, member.team_id):
            raise _Ended(CHANGED)
        return member

    def _stored(self) -> Stored:
        member = self._admitted()
        self.member = member
        with scope.organization(member.organization_id):
            return live.stored(member, self.page, now=utc_now())


def _page(asgi_scope: Any) -> str:
    """Raises _Ended for a page that is none."""
    query: bytes = asgi_scope["query_string"]
    name = parse_qs(query.decode("latin-1")).get("page", [""])[0]
    if name not in live.PAGES:
        raise _Ended(FOREIGN)
    return name


def numbers(standing: Standing) -> dict[str, Any]:
    """What a page with meters is told."""
    blocking = standing.blocking
    return {
        "left": standing.spendable.left_text,
        "deciding": standing.spendable.id if blocking is None else f"blocked by {blocking.id}",
        "meters": [_meter(meter) for meter in standing.meters],
    }


def _meter(meter: Meter) -> dict[str, Any]:
    return {
        "id": meter.id,
        "left": meter.left_text,
        "held": meter.held_text,
        "used": meter.used_text,
        "percent": meter.percent,
        "left_share": meter.left_share,
        "held_share": meter.held_share,
        "level": meter.level,
    }


websocket_urlpatterns = [path(ROUTE, LiveConsumer.as_asgi())]  # type: ignore[arg-type]  # an ASGI application
