"""The live number of My key: what is left, told when usage moves and at the latest every 10 seconds."""

import asyncio
import json
import logging
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.http import Http404, HttpRequest
from django.urls import path

from accounts import permissions, tenancy
from accounts.models import Member
from accounts.permissions import Action, Reach
from billing import overview
from config import scope
from config.clock import utc_now
from config.errors import DomainError
from quotas import live, remaining
from quotas.remaining import Meter, Standing

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 10.0
PAUSE_SECONDS = 1.0
"""However often usage moves, a page is not told more often than this."""
FOREIGN, FORBIDDEN = 4404, 4403


class _Ended(Exception):
    """The page may not be shown any more; `code` says why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class MyKeyConsumer(AsyncWebsocketConsumer):
    """`/ws/o/<slug>/key`: tells the page how things stand; takes nothing from it.

    `{"type": "usage", "left", "deciding", "newest", "meters": [...]}`: `left` is the number of the first sentence, `deciding` names
    the limit it is about, `newest` is the id of the newest logged request. Each of `meters` is `{"id", "left", "held", "used",
    "percent", "left_share", "held_share", "level"}`, texts as the page writes them. `{"type": "unavailable", "message"}` when the
    numbers cannot be read. Closes with 4404 for an organization that is not (or no more) one's own, 4403 for a role without keys.
    """

    member: Member | None = None
    task: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        # Accepted first: a browser shows no code of a handshake that was refused.
        await self.accept()
        try:
            self.member = await database_sync_to_async(self._admitted)()
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
        told = ""
        while True:
            self.moved.clear()
            try:
                text = await self._text()
            except _Ended as ended:
                await self.close(code=ended.code)
                return
            if text != told:
                await self.send(text_data=text)
                told = text
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                async with asyncio.timeout(REFRESH_SECONDS - PAUSE_SECONDS):
                    await self.moved.wait()
            except TimeoutError:
                pass

    async def _text(self) -> str:
        try:
            member, newest = await database_sync_to_async(self._current)()
            return json.dumps(message(await remaining.live_standing(member, now=utc_now()), newest))
        except DomainError as error:
            return json.dumps({"type": "unavailable", "message": error.message})
        except _Ended:
            raise
        except Exception:
            # The page says that it is not live, and asks again.
            logger.exception("live number not read")
            return json.dumps({"type": "unavailable", "message": "The numbers did not arrive."})

    def _admitted(self) -> Member:
        """Asked again each time: a page ends with the membership, with the session, and with the account or its password."""
        request = HttpRequest()
        request.session = SessionStore(self.scope["session"].session_key)
        try:
            user = get_user(request)
            member = tenancy.membership(user, self.scope["url_route"]["kwargs"]["slug"])
        except Http404:
            raise _Ended(FOREIGN) from None
        if permissions.reach(member, Action.USE_KEYS) is Reach.NONE:
            raise _Ended(FORBIDDEN)
        return member

    def _current(self) -> tuple[Member, str]:
        member = self._admitted()
        with scope.organization(member.organization_id):
            return member, self._newest(member)

    def _newest(self, member: Member) -> str:
        whose = overview.Whose(member.organization, member_id=member.pk)
        return overview.newest_request_id(whose, now=utc_now())


def message(standing: Standing, newest: str) -> dict[str, Any]:
    """What the page is told."""
    blocking = standing.blocking
    return {
        "type": "usage",
        "left": standing.spendable.left_text,
        "deciding": standing.spendable.id if blocking is None else f"blocked by {blocking.id}",
        "newest": newest,
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


websocket_urlpatterns = [path("o/<slug:slug>/key", MyKeyConsumer.as_asgi())]  # type: ignore[arg-type]  # an ASGI application
