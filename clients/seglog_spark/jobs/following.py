"""Repeating a job until it is interrupted; without Spark."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from seglog_protocol.errors import ClientTimeoutError, NotReachableError, SeglogError

AGAIN_SECONDS: Final = 5.0
"""Seconds until a failed round is tried again, whatever the interval of rounds."""


def follow(
    one_round: Callable[[], object],
    seconds: float,
    say: Callable[[str], None],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Begin ``one_round`` every ``seconds``, or when the last one is done if that is later; return when interrupted.

    A temporary error is reported once, and the round tried again; every other error is raised. An interrupt abandons
    the round in progress.
    """
    reported: str | None = None
    try:
        while True:
            began = now()
            pause = seconds
            try:
                one_round()
            except SeglogError as error:
                if not passes(error):
                    raise
                if reported != error.message:
                    say(f"{error.message.rstrip('.')}; trying again until it succeeds")
                reported, pause = error.message, AGAIN_SECONDS
            else:
                if reported is not None:
                    say("it works again")
                reported = None
            sleep(max(0.0, began + pause - now()))
    except KeyboardInterrupt:
        return


def passes(error: SeglogError) -> bool:
    """Whether the same may succeed later: the broker restarts, recovers a partition, or has a full disk."""
    return error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within this block SIGTERM, which ends services, acts as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
