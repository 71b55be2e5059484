"""Sequences of requests and replies, written once for all faces of the client.

A conversation is a generator: it yields requests, is sent the replies, and returns a result. It owns no socket and no
clock; ``converse`` and ``converse_async`` run it. A consumer in a group has steps that are no requests, too.
"""

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

from seglog.core.connection import Reply
from seglog.core.retries import Waiting, backoff_seconds
from seglog_protocol.errors import PartitionRecoveringError, SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.messages import MessageT, Request, decode_reply

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
StepT = TypeVar("StepT")


class Ask(NamedTuple):
    """One request, to be sent after ``after_seconds``.

    ``is_repeatable``: may be sent once more after the connection was lost.
    """

    request: Request
    payload: Sequence[Buffer] = ()
    is_repeatable: bool = False
    after_seconds: float = 0.0


Conversation = Generator[Ask, Reply, ResultT]


def pages(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    """The items for one request after the other, at most ``size`` each; none without items."""
    return (items[start : start + size] for start in range(0, len(items), size))


def ask(
    request: Request,
    reply_type: type[MessageT],
    payload: Sequence[Buffer] = (),
    *,
    is_repeatable: bool = False,
    after_seconds: float = 0.0,
) -> Conversation[tuple[MessageT, memoryview]]:
    """A single request; returns its reply and the reply's payload. Raises the broker's error."""
    reply = yield Ask(request, payload, is_repeatable, after_seconds)
    return decode_reply(reply.header, reply_type), reply.payload


def check(results: Iterable[Any]) -> None:
    """Raise the first error of the results of a reply."""
    for result in results:
        if result.error is not None:
            raise result.error


def patiently(
    asked: Callable[[float], Conversation[ResultT]],
    passes: Callable[[SeglogError], bool],
    limit_seconds: float = math.inf,
) -> Conversation[ResultT]:
    """The result of ``asked``, which is called with the seconds to wait before its request.

    Repeated while it raises what ``passes``, for so many seconds of waits. These are logged from time to time.
    """
    pause = waited = 0.0
    waiting = Waiting()
    for attempt in count():
        try:
            found = yield from asked(pause)
        except SeglogError as error:
            pause = backoff_seconds(attempt)
            waited += pause
            if not passes(error) or waited > limit_seconds:
                raise
            waiting.failed(error, 0.0, waited)
        else:
            waiting.ended(waited)
            return found
    raise AssertionError("there is always another attempt")


def when_recovered(asked: Callable[[float], Conversation[ResultT]]) -> Conversation[ResultT]:
    """``patiently``, without a limit, while the broker answers that a partition is recovering: recovery ends."""
    return patiently(asked, lambda error: isinstance(error, PartitionRecoveringError))


def converse(
    conversation: Generator[StepT, Any, ResultT],
    do: Callable[[StepT], object],
    sleep: Callable[[float], object] | None = None,
) -> ResultT:
    """Run a conversation to its end: ``do`` answers each step, and its SeglogError is raised in the conversation."""

    async def done(step: StepT) -> object:
        return do(step)

    async def slept(seconds: float) -> object:
        return (sleep or time.sleep)(seconds)

    return at_once(converse_async(conversation, done, slept))


def at_once(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of a coroutine of the blocking face: what it awaits blocks, and never gives way to a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    work.close()
    raise TypeError("an async function was given to the blocking client: use seglog.asyncio or seglog.trio")


async def converse_async(
    conversation: Generator[StepT, Any, ResultT],
    do: Callable[[StepT], Awaitable[object]],
    sleep: Callable[[float], Awaitable[object]],
) -> ResultT:
    """``converse`` with an async ``do``; ``sleep`` takes seconds."""
    try:
        step = next(conversation)
        while True:
            if isinstance(step, Ask) and step.after_seconds:
                await sleep(step.after_seconds)
            try:
                answer = await do(step)
            except SeglogError as error:
                step = conversation.throw(error)
            else:
                step = conversation.send(answer)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    finally:
        conversation.close()
