"""What is asked of a broker and made of its answers, written once for both faces.

A conversation is a generator: it yields what to ask, is sent the reply, and returns what came of it. It owns no socket
and no clock; ``converse`` and ``converse_async`` lead one.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

from seglog.connection import Reply
from seglog_protocol.frames import Buffer
from seglog_protocol.messages import MessageT, Request, decode_reply

ResultT = TypeVar("ResultT")


class Ask(NamedTuple):
    """One request. ``is_repeatable``: may be asked once more when the connection broke under it."""

    request: Request
    payload: Sequence[Buffer] = ()
    is_repeatable: bool = False


Conversation = Generator[Ask, Reply, ResultT]


def ask(
    request: Request, reply_type: type[MessageT], payload: Sequence[Buffer] = (), *, is_repeatable: bool = False
) -> Conversation[tuple[MessageT, memoryview]]:
    """A single request; its reply and the reply's payload. Raises the error that the broker answers with."""
    reply = yield Ask(request, payload, is_repeatable)
    return decode_reply(reply.header, reply_type), reply.payload


def converse(conversation: Conversation[ResultT], answer: Callable[[Ask], Reply]) -> ResultT:
    """Lead a conversation to its end; what ``answer`` raises ends it."""
    try:
        question = next(conversation)
        while True:
            question = conversation.send(answer(question))
    except StopIteration as end:
        result: ResultT = end.value
        return result
    finally:
        conversation.close()


async def converse_async(conversation: Conversation[ResultT], answer: Callable[[Ask], Awaitable[Reply]]) -> ResultT:
    """As ``converse``, where answers are awaited."""
    try:
        question = next(conversation)
        while True:
            question = conversation.send(await answer(question))
    except StopIteration as end:
        result: ResultT = end.value
        return result
    finally:
        conversation.close()
