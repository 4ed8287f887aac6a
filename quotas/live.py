"""Tells open pages that an organization's usage has moved."""

import logging

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

logger = logging.getLogger(__name__)


def group(organization_id: int) -> str:
    return f"usage.{organization_id}"


def announce(organization_id: int) -> None:
    """Sends one message to the pages of the organization. Never raises: a page that misses it asks again by itself."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(layer.group_send)(group(organization_id), {"type": "usage.moved"})
    except Exception:
        logger.warning("pages were not told", extra={"organization_id": organization_id}, exc_info=True)
