"""What open pages of other apps look at: here, because quotas speaks to open pages and does not know routing."""

from collections.abc import Callable

from config.snapshot import Snapshot

Read = Callable[[Snapshot], str]
"""Says how something stands now, as a text that is another one when it stands otherwise. Sync, without SQL; raises
RedisUnavailable."""

_reads: dict[str, Read] = {}


def register(page: str, read: Read) -> None:
    """`read` is asked every few seconds for each open page of this name."""
    _reads[page] = read


def read(page: str, loaded: Snapshot) -> str:
    """ "" for a page that nothing is registered for."""
    found = _reads.get(page)
    return found(loaded) if found is not None else ""
