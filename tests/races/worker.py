"""One worker process: lanes of requests through the real admission, as the proxy drives it."""

import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
import uvloop

LANES = 6
MODELS = ("gpt-5.5", "gpt-5.4", "gpt-5.4-mini")
RETRIES = 8


@dataclass(frozen=True, slots=True)
class Orders:
    """What the stage tells a worker. `tenants`: organization id, its kind (exact, rough, postpaid), public ids of its keys."""

    name: str
    seed: str
    folder: str
    tenants: tuple[tuple[int, str, tuple[str, ...]], ...]


def main() -> None:
    raw = json.loads(sys.argv[1])
    tenants = tuple((number, kind, tuple(keys)) for number, kind, keys in raw.pop("tenants"))
    django.setup()
    logging.disable(logging.INFO)
    uvloop.run(_run(Orders(**raw, tenants=tenants)))


async def _run(orders: Orders) -> None:
    # Made inside the loop, for which the client and the cache are.
    await _Worker(orders).run()


class _Worker:
    def __init__(self, orders: Orders) -> None:
        from config import redis, snapshot
        from quotas import admission
        from tests.races.journal import Journal

        self.orders = orders
        self.journal = Journal(Path(orders.folder) / f"{orders.name}.journal")
        self.redis = redis.client()
        self.cache = snapshot.cache()
        self.renewer = admission.renewer(self.redis)
        self.stopped = asyncio.Event()
        self.admission = admission

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopped.set)
        self.renewer.start()
        listening = asyncio.ensure_future(self.cache.listen())
        # A lane that raises ends the process with its error; the stage sees the exit code.
        await asyncio.gather(*(self.lane(number) for number in range(LANES)))
        await self.admission.finish(self.redis, timeout_seconds=10)
        listening.cancel()
        await self.renewer.stop()
        await self.redis.close()

    async def lane(self, number: int) -> None:
        rng = random.Random(f"{self.orders.seed}/{number}")
        count = 0
        while not self.stopped.is_set():
            count += 1
            await self.one(rng, f"{self.orders.name}-{number}-{count}")
            await asyncio.sleep(rng.choice([0, 0, 0.002, 0.02]))

    async def one(self, rng: random.Random, request: str) -> None:
        """One request from its admission to its end, or as far as it gets."""
        organization, kind, keys = rng.choice(self.orders.tenants)
        public_id, model = rng.choice(keys), rng.choice(MODELS)
        need = self.admission.Amount(rng.choice([0, 40, 1000, 25_000]), rng.choice([0, 10, 300]))
        fate = rng.choices(
            ["settle", "twice", "release", "abandoned", "long", "late", "cut", "withdrawn"], [60, 8, 9, 3, 8, 1.5, 5, 6]
        )[0]
        patience, pause = rng.uniform(0, 0.004), rng.choice([0, 0.001, 0.01, 0.05])
        cost = self.cost(rng, kind, need)
        self.journal.write("try", request, organization=organization, key=public_id, need=(need.credits, need.tokens), kind=kind)
        asking = asyncio.ensure_future(self.admit(organization, public_id, request, need, model))
        if fate == "withdrawn":
            # The client leaves while the answer is on its way.
            await asyncio.wait([asking], timeout=patience)
            asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            hold = await asking
            if hold is not None:
                await self.end(rng, request, hold, need, cost, fate, pause)

    def cost(self, rng: random.Random, kind: str, need: Any) -> Any:
        factor = rng.choice([1, 1, 0.5, 0] if kind == "exact" else [1, 0.3, 1.7, 2])
        return self.admission.Amount(int(need.credits * factor), int(need.tokens * factor))

    async def admit(self, organization: int, public_id: str, request: str, need: Any, model: str) -> Any:
        """The hold, or None. As the proxy does it: with a snapshot, again after STALE."""
        from billing import events
        from quotas import errors

        loaded = await self.cache.get(organization)
        for _ in range(RETRIES):
            key = loaded.accounts.keys.get(public_id)
            if key is None:
                self.journal.write("unauthorized", request)
                await asyncio.sleep(0.01)
                return None
            body = events.Body(member_id=key.member_id, key_id=key.key_id, team_id=key.team_id, model_asked=model)
            try:
                admitted = await self.admission.admit(
                    self.redis, loaded, key, request_id=request, need=need, about=events.encode_body(body), model=model
                )
            except errors.Stale as stale:
                loaded = await self.cache.get(organization, at_least=stale.version)
                continue
            except errors.Refused as refused:
                facts = {name: getattr(refused, name) for name in ("scope", "metric", "window", "limit", "used", "held", "need")}
                self.journal.write("refused", request, facts=facts)
                return None
            except errors.Degraded as error:
                self.journal.write("degraded", request, reason=str(error.facts))
                await asyncio.sleep(0.05)
                return None
            self.journal.write("admitted", request, ack=admitted.hold.ack, source=admitted.hold.source)
            return admitted.hold
        self.journal.write("stale", request)
        return None

    async def end(self, rng: random.Random, request: str, hold: Any, need: Any, cost: Any, fate: str, pause: float) -> None:
        from billing import events

        if fate == "abandoned":
            # Nobody renews it: the sweeper books what was observed, nothing.
            return
        if fate == "long":
            self.renewer.add(hold)
            for part in (0.3, 0.6, 0.9):
                seen = self.admission.Amount(int(cost.credits * part), int(cost.tokens * part))
                self.journal.write("observed", request, amount=(seen.credits, seen.tokens))
                hold.observe(seen)
                self.renewer.renew_soon(hold)
                await asyncio.sleep(rng.choice([0.05, 0.3, 1.2]))
            self.renewer.discard(hold)
        elif fate == "late":
            # Longer than its lease: the sweeper is first, this is the amendment.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), rng.choice([3.5, 4.5]))
        else:
            await asyncio.sleep(pause)
        state = "R" if fate == "release" else "S"
        self.journal.write("ending", request, state=state, amount=(cost.credits, cost.tokens) if state == "S" else (0, 0))
        if state == "R":
            settled = await self.admission.release(self.redis, hold)
        else:
            about = json.loads(events.encode_body(self._body(hold, request, cost, rng)))
            body = json.dumps(about).encode()
            settling = asyncio.ensure_future(self.admission.settle(self.redis, hold, amount=cost, body=body))
            if fate == "cut":
                # Whoever waits for the settlement is cancelled; the settlement goes on.
                await asyncio.sleep(0)
                settling.cancel()
                return
            settled = await settling
            if fate == "twice":
                again = await self.admission.settle(self.redis, hold, amount=cost, body=body)
                self.journal.write("ended", request, state=state, outcome=again.outcome)
        self.journal.write("ended", request, state=state, outcome=settled.outcome)

    def _body(self, hold: Any, request: str, cost: Any, rng: random.Random) -> Any:
        from billing import events
        from quotas import records

        names = records.read_ticket(hold.ticket).records
        ids = {name[0]: int(name[1:]) for name in names if "~" not in name and name != "o"}
        model = rng.choice(MODELS)
        line = events.PriceLine(model=model, input=cost.tokens, credits=cost.credits)
        return events.Body(
            member_id=ids["m"],
            key_id=ids["k"],
            team_id=ids.get("t"),
            model_asked=model,
            model_served=model,
            status="ok",
            lines=(line,),
        )


if __name__ == "__main__":
    main()
