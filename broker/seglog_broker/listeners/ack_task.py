"""The task of a connection that answers those of its appends which cannot be answered as their acks are reached."""

from collections.abc import Callable

import trio

from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sender import REPLIES_A_TURN, AckQueue
from seglog_broker.listeners.sending import flush


async def run(acks: AckQueue) -> None:
    """Send the replies until ``AckQueue.finish``. Raises OSError when the peer cannot be reached."""
    answered = 0
    while True:
        filled = acks.filled = trio.Event()  # first, so that an append added during a wait below is seen
        acks.is_listening = False
        while acks.unanswered and (acks.is_finished or acks.unanswered[0].replies is not None or not acks.listen()):
            answered += await _answer_first(acks)
            if answered >= REPLIES_A_TURN:
                answered = 0
                await flush(acks.sender)
                await trio.lowlevel.checkpoint()
        await flush(acks.sender)
        if acks.is_finished and not acks.unanswered:
            return
        await filled.wait()


async def wait_while(acks: AckQueue, holds: Callable[[], object]) -> None:
    """Return when something does not hold any more, which is looked at whenever some were answered."""
    while holds():
        shortened = acks.shortened = trio.Event()
        await shortened.wait()


async def _answer_first(acks: AckQueue) -> int:
    """Answer the first in the queue; the number of replies."""
    acks.is_listening = False  # else it would be answered twice
    first = acks.unanswered[0]
    replies = first.replies  # one fsync reaches many, and their replies go out together
    if replies is None:
        await flush(acks.sender)
        assert not isinstance(first.outcome, list)
        try:
            await first.outcome.wait()
            replies = first.outcome.replies
            assert replies is not None
        except Exception as error:  # noqa: BLE001 - answered and, unless the client is at fault, logged
            replies = [as_seglog_error(error, "append")] * len(first.request_ids)
    frames = acks.wire.encode_appended(first.request_ids, replies, first.began)
    if frames is None:
        frames = await acks.wire.encode_long_appended(first.request_ids, replies, first.began)
    # They stay in the queue until here, so that no later append is answered before them.
    return acks.reply_to_first(frames)
