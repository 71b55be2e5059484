"""A job that goes on, round after round, until it is told to end; without Spark."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from seglog_protocol.errors import ClientTimeoutError, NotReachableError, SeglogError

AGAIN_SECONDS: Final = 5.0
"""Between two attempts at a round that failed, however rare rounds are."""


def follow(
    one_round: Callable[[], object],
    seconds: float,
    say: Callable[[str], None],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Begin ``one_round`` every ``seconds``, or as soon as the last one is done; return when interrupted.

    An error that passes is told, once, and the round begun again; raises every other one. An interrupt gives up the
    round under way.
    """
    told: str | None = None
    try:
        while True:
            began = now()
            pause = seconds
            try:
                one_round()
            except SeglogError as error:
                if not passes(error):
                    raise
                if told != error.message:
                    say(f"{error.message.rstrip('.')}; trying again until that has passed")
                told, pause = error.message, AGAIN_SECONDS
            else:
                if told is not None:
                    say("that has passed, and all goes on")
                told = None
            sleep(max(0.0, began + pause - now()))
    except KeyboardInterrupt:
        return


def passes(error: SeglogError) -> bool:
    """Whether the same may work later: the broker is being started again, recovers a partition, has a full disk."""
    return error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """In this block SIGTERM, by which services are ended, does what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
