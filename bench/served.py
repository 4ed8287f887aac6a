"""`manage.py serve` with a window: the same process, and a thread that tells what outsiders cannot count.

    python -m bench.served SOCKET --port PORT

Each connection to the Unix socket SOCKET is told one JSON object (`Inside`) and closed. The product itself knows nothing of it.
"""

import asyncio
import json
import socket
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Inside:
    """Counts of a web process: its event loop's tasks (`kinds`: by what they run); proxied requests that run; slots; connections to
    upstreams and to the database that are kept for the next request; and those to the database that are in use."""

    tasks: int
    kinds: dict[str, int]
    running: int
    slots: int
    kept: int
    database: int


def ask(path: Path) -> Inside:
    """Raises OSError while nobody listens."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(30)
        asking.connect(str(path))
        return Inside(**json.loads(b"".join(iter(lambda: asking.recv(65536), b""))))


async def _look() -> Inside:
    from django.db import connection

    from proxy import lifespan

    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    kinds = Counter(str(getattr(task.get_coro(), "__qualname__", "?")) for task in tasks)
    resources = lifespan.resources()
    pool: Any = cast(Any, connection).pool.get_stats()
    return Inside(
        tasks=len(tasks),
        kinds=dict(kinds),
        running=resources.running,
        slots=len(resources.leases),
        kept=resources.upstream.idle_connections + pool["pool_available"],
        database=pool["pool_size"] - pool["pool_available"],
    )


def _tell(path: Path, loops: list[asyncio.AbstractEventLoop]) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        while True:
            asking, _ = listening.accept()
            with asking:
                found = asyncio.run_coroutine_threadsafe(_look(), loops[-1]).result()
                asking.sendall(json.dumps(asdict(found)).encode())


def main(path: Path, arguments: list[str]) -> None:
    import django

    django.setup()
    from django.core.management import call_command

    from proxy import lifespan

    startup = lifespan.startup
    loops: list[asyncio.AbstractEventLoop] = []

    async def started() -> Any:
        await startup()
        loops.append(asyncio.get_running_loop())
        threading.Thread(target=_tell, args=(path, loops), daemon=True).start()

    lifespan.startup = started
    call_command("serve", *arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
