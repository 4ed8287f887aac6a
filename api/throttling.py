"""How many calls are taken: per token, per member with all their tokens, and of failed ones per address. In Redis, so that all
processes count together.

Without Redis nothing is held back: what would be harmed by that is guarded elsewhere, and a token cannot be guessed.
"""

import ipaddress
import logging
from functools import cache
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest

from api.errors import Throttled
from config import redis as weir_redis
from config.redis import RedisUnavailable, ReplyError

logger = logging.getLogger(__name__)

AT_ONCE = 5
"""A fifth of a minute's calls may come at once."""
MOST_TOKENS_WORTH = 5
"""However many tokens a member makes, together they may call as often as so many."""
FAILED_PER_MINUTE, FAILED_AT_ONCE = 60, 30


@cache
def _script() -> weir_redis.Script:
    return weir_redis.Script("api.throttle", (Path(__file__).parent / "lua" / "throttle.lua").read_text())


def of_caller(member_id: int, token_id: int | None) -> None:
    """Counts a call of a token, or (None) of a key. Raises Throttled. API_REQUESTS_PER_MINUTE 0 holds nobody back."""
    rate = settings.API_REQUESTS_PER_MINUTE
    if rate:
        name = f"t{token_id}" if token_id is not None else f"m{member_id}"
        _take(f"api:calls:{name}", rate, max(1, rate // AT_ONCE), "Too many calls with this token.")
        rate *= MOST_TOKENS_WORTH
        _take(f"api:calls:all:{member_id}", rate, max(1, rate // AT_ONCE), "Too many calls with all of your tokens.")


def of_failure(request: HttpRequest) -> None:
    """Counts a call that did not prove who it is. Raises Throttled; whoever proves it is never held back by others' failures."""
    if settings.API_REQUESTS_PER_MINUTE:
        address = _network(request.META.get("REMOTE_ADDR") or "")
        _take(f"api:failed:{address}", FAILED_PER_MINUTE, FAILED_AT_ONCE, "Too many calls without a token that holds.")


def _take(key: str, per_minute: int, at_once: int, message: str) -> None:
    try:
        wait_ms = _script().run(weir_redis.sync_client(), [key], [per_minute, at_once, 1])
    except (RedisUnavailable, ReplyError):
        logger.warning("calls are not counted", exc_info=True)
        return
    if wait_ms:
        seconds = -(-int(wait_ms) // 1000)
        raise Throttled(f"{message} Try again in {seconds} s.", retry_after=seconds)


def _network(text: str) -> str:
    """Whoever has one IPv6 address has 2**64 of them."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address)
