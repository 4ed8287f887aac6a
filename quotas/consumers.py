"""The live number on My key: what is left, again whenever usage has moved and every 10 seconds."""

import asyncio
import json
import logging
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.http import Http404
from django.urls import path

from accounts import permissions, tenancy
from accounts.models import Member
from accounts.permissions import Action, Reach
from config.clock import utc_now
from config.errors import DomainError
from quotas import live, remaining

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 10.0
PAUSE_SECONDS = 0.5
"""However often usage moves, a page is not told more often than this."""
FOREIGN, FORBIDDEN = 4404, 4403


class MyKeyConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """`/ws/o/<slug>/key`: sends {"type": "usage", "left", "meter", "live"}; takes nothing from the page."""

    member: Member | None = None
    task: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        await self.accept()
        try:
            self.member = await database_sync_to_async(tenancy.membership)(
                self.scope["user"], self.scope["url_route"]["kwargs"]["slug"]
            )
        except Http404:
            await self.close(code=FOREIGN)
            return
        if permissions.reach(self.member, Action.USE_KEYS) is Reach.NONE:
            await self.close(code=FORBIDDEN)
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
                text = await database_sync_to_async(self._read)()
            except DomainError as error:
                text = json.dumps({"type": "unavailable", "message": error.message})
            except Http404:
                # Removed meanwhile.
                await self.close(code=FOREIGN)
                return
            except Exception:
                logger.exception("live number not read")
                text = json.dumps({"type": "unavailable", "message": "The numbers did not arrive."})
            if text != told:
                await self.send(text_data=text)
                told = text
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self.moved.wait()
            except TimeoutError:
                pass

    def _read(self) -> str:
        member = tenancy.membership(self.scope["user"], self.scope["url_route"]["kwargs"]["slug"])
        usage = remaining.of_member(member, now=utc_now())
        meter = remaining.spendable(remaining.meters(usage))
        return json.dumps({"type": "usage", "left": meter.left_text, "meter": meter.title, "percent": meter.percent})


websocket_urlpatterns = [path("o/<slug:slug>/key", MyKeyConsumer.as_asgi())]
