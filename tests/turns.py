"""How much processor time each turn of the loop takes, and whether that is too much.

A turn may take 30 ms, or so many decodings of the largest ordinary request in the same run, if that is longer: no
verdict depends on how fast the machine is. What else the machine does can make one turn of very many longer than its
work is, so a test that found one runs again: what the code does takes as long each time.
"""

import functools
import gc
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from seglog_protocol.frames import decode_map, encode_value
from tests.support import request_of

LIMIT_SECONDS: Final = 0.03
LIMIT_REFERENCES: Final = 4
"""In decodings of the largest ordinary request: 10,000 partitions in a fetch, some 10 ms on a quiet machine. It is one
more than makes 30 ms of them, because a run has very many more turns than references, and so the longer outliers."""
ATTEMPTS: Final = 3

LARGEST: Final = encode_value(
    {
        "id": 1,
        "api": "fetch",
        "v": 1,
        "partitions": [{"topic": "target", "partition": number, "offset": number} for number in range(10_000)],
    }
)


class TurnTooLongError(AssertionError):
    """A turn took more processor time than it may."""


def reference_seconds() -> float:
    """Processor time to decode the largest ordinary request, now."""
    began = time.thread_time()
    request_of(decode_map(LARGEST, "header"))
    return time.thread_time() - began


def judge_turn(seconds: float, what: object, references: Iterable[float] = ()) -> None:
    """Raise TurnTooLongError if a turn took too long, by references of its time, or by some that are taken now."""
    reference = max(references, default=0.0) or max(reference_seconds() for _ in range(5))
    if seconds >= max(LIMIT_SECONDS, LIMIT_REFERENCES * reference):
        raise TurnTooLongError(f"{what}: {seconds * 1000:.1f} ms, where a reference takes {reference * 1000:.1f} ms")


def judges_turns(test: Callable[..., Any]) -> Callable[..., Any]:
    """Have a test, which may be async, run until no turn is too long, ATTEMPTS times at most.

    Its ``tmp_path`` is a new directory each time.
    """

    def prepared(fixtures: dict[str, Any], attempt: int) -> dict[str, Any]:
        if (tmp_path := fixtures.get("tmp_path")) is None:
            return fixtures
        assert isinstance(tmp_path, Path)
        folder = tmp_path / str(attempt)
        folder.mkdir()
        return fixtures | {"tmp_path": folder}

    def tell(group: BaseExceptionGroup[TurnTooLongError], attempt: int) -> None:
        print(f"attempt {attempt}: {group.exceptions}")
        if attempt == ATTEMPTS:
            raise group

    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def attempts_async(**fixtures: Any) -> None:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await test(**prepared(fixtures, attempt))
                except* TurnTooLongError as group:
                    tell(group, attempt)
                else:
                    break

        return attempts_async

    @functools.wraps(test)
    def attempts(**fixtures: Any) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                test(**prepared(fixtures, attempt))
            except* TurnTooLongError as group:
                tell(group, attempt)
            else:
                break

    return attempts


class Turns(trio.abc.Instrument):
    """The longest step of any task, seconds of processor time, and whose it was."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.task = ""
        self._began = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        if took > self.longest:
            self.longest, self.task = took, task.name


@contextmanager
def measured() -> Iterator[Turns]:
    """Measure the steps of the block, without the garbage collector, which looks at what other tests left."""
    gc.collect()
    gc.disable()
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)
        gc.enable()
