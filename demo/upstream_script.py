"""What the next answers shall be: the form that the control route takes, the queues, and the gates that hold answers back."""

import asyncio
from typing import Any, Literal

import msgspec

from demo.upstream_errors import ERRORS


class Wrong(Exception):
    """A control request that cannot be meant; the text names the field."""


class Hold(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Waits at the gate `name` until `POST /control/release`: before the head, after it, or after so many events."""

    name: str
    after: Literal["request", "head"] | int = "request"


class Failure(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The error that a `response.failed` carries."""

    code: str
    message: str = "The server had an error processing your request."


class Answer(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """One scripted answer, as the docstring of `demo.upstream` describes it. Times in seconds."""

    status: int | None = None
    body: Any = msgspec.UNSET
    headers: dict[str, str | None] = msgspec.field(default_factory=dict)
    error: str | None = None

    events: list[dict[str, Any]] | None = None
    raw: str | None = None

    text: str | None = None
    tool: str | None = None
    arguments: dict[str, Any] | None = None
    deltas: int | None = None
    usage: dict[str, Any] | None = None
    no_usage: bool = False
    model: str | None = None
    tier: str | None = None
    terminal: str | None = None
    fail: Failure | None = None

    delay: float = 0.0
    first_event_delay: float = 0.0
    event_delay: float = 0.0
    chunk: int | list[int] | None = None
    chunk_delay: float = 0.0

    cut_before_head: bool = False
    cut_after_events: int | None = None
    cut_after_bytes: int | None = None
    cut_how: Literal["reset", "close"] | int = "reset"
    silence: Literal["head", "body"] | None = None
    silence_after_events: int | None = None
    deaf: bool = False
    lost: bool = False
    hold: Hold | None = None

    def __post_init__(self) -> None:
        if self.error is not None and self.error not in ERRORS:
            raise ValueError(f"error {self.error!r} is not one of: {', '.join(sorted(ERRORS))}")
        if self.terminal is not None and self.terminal not in TERMINALS:
            raise ValueError(f"terminal {self.terminal!r} is not one of: {', '.join(TERMINALS)}")
        if min(self.chunks, default=1) < 1:
            raise ValueError("chunk must be positive")
        numbers = (self.deltas, self.cut_after_events, self.cut_after_bytes, self.silence_after_events)
        if any(number is not None and number < 0 for number in numbers):
            raise ValueError("deltas, cut_after_events, cut_after_bytes and silence_after_events must not be negative")

    @property
    def chunks(self) -> list[int]:
        """Bytes of one write after the other, gone through in a circle; [] for an event a write."""
        if self.chunk is None:
            return []
        return self.chunk if isinstance(self.chunk, list) else [self.chunk]


TERMINALS = ("response.completed", "response.incomplete", "response.failed", "none")


NAMED_ONLY = ("upgrade", "warm_up")


class Match(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Which requests a script answers; what is not set fits all. Without `path` only requests for a response fit, without
    `transport` neither a WebSocket's upgrade nor its warm-up."""

    account: str | None = None
    path: str | None = None
    model: str | None = None
    token: str | None = None
    transport: Literal["http", "socket", "upgrade", "warm_up"] | None = None

    def fits(self, seen: "Match", *, is_response: bool) -> bool:
        if self.path is None and not is_response:
            return False
        if self.transport != seen.transport and (self.transport is not None or seen.transport in NAMED_ONLY):
            return False
        pairs = ((self.account, seen.account), (self.path, seen.path), (self.model, seen.model), (self.token, seen.token))
        return all(wanted is None or wanted == found for wanted, found in pairs)


class Script(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The answers in order, the whole list `repeat` times over; 0 repeats it for ever."""

    answers: list[Answer]
    repeat: int = 1
    match: Match = Match()

    def __post_init__(self) -> None:
        if not self.answers or self.repeat < 0:
            raise ValueError("answers must not be empty, repeat must not be negative")


class _Queue:
    def __init__(self, script: Script) -> None:
        self.match = script.match
        self._answers = script.answers
        self._left = len(script.answers) * script.repeat if script.repeat else None
        self._next = 0

    @property
    def is_used_up(self) -> bool:
        return self._left is not None and self._next >= self._left

    def take(self) -> Answer:
        answer = self._answers[self._next % len(self._answers)]
        self._next += 1
        return answer


class Scripts:
    """Queues in the order of their arrival: a request takes the next answer of the first queue that fits it."""

    def __init__(self) -> None:
        self._queues: list[_Queue] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._end_of_silence = asyncio.Event()

    def add(self, raw: bytes) -> int:
        """Queues a script given as JSON; how many queues there are now. Raises Wrong."""
        try:
            self._queues.append(_Queue(msgspec.json.decode(raw, type=Script)))
        except msgspec.ValidationError as error:
            raise Wrong(str(error)) from None
        return len(self._queues)

    def take(self, seen: Match, *, is_response: bool) -> Answer | None:
        """The scripted answer for a request, used up by this; None if there is none."""
        for queue in self._queues:
            if queue.match.fits(seen, is_response=is_response):
                answer = queue.take()
                if queue.is_used_up:
                    self._queues.remove(queue)
                return answer
        return None

    def gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    @property
    def end_of_silence(self) -> asyncio.Event:
        return self._end_of_silence

    def reset(self) -> None:
        """Forgets every script, opens every gate, ends every silence."""
        self._queues.clear()
        for gate in self._gates.values():
            gate.set()
        self._gates.clear()
        self._end_of_silence.set()
        self._end_of_silence = asyncio.Event()
