"""The task of a fetch that waits for something else than records, or whose answer takes several turns."""

from seglog_broker.listeners.native.fetches import Fetches
from seglog_broker.listeners.native.long_replies import encode_long_reply
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sending import flush, send_frame
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_protocol.errors import BrokerStoppingError, RequestCancelledError, SeglogError
from seglog_protocol.messages import FetchRequest


async def answer(fetches: Fetches, request_id: int, request: FetchRequest, waiter: Waiter, began: float) -> None:
    """Wait for the answer to a fetch and send it."""
    found: FetchAnswer | None = None
    failure: SeglogError | None = None
    try:
        try:
            found = await fetches.broker.fetch(request, waiter)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            if not (waiter.is_ended and isinstance(error, RequestCancelledError)):
                failure = as_seglog_error(error, FetchRequest.api)
        fetches.waiting.pop(request_id, None)
        if request_id in fetches.cancelled:  # even if an answer came just now: the cancel reply says it is ended
            fetches.cancelled.discard(request_id)
            failure = RequestCancelledError("the fetch was cancelled, as asked")
            if found is not None:
                with found:
                    found = None
        if found is not None:
            await _send(fetches, request_id, found, began)
            return
        if failure is None and fetches.stop_reason is not None:
            failure = BrokerStoppingError(f"{fetches.stop_reason}; connect again")
        if failure is not None:  # else the peer has left
            fetches.queue_error(request_id, failure, began)
            await flush(fetches.sender)
    finally:
        fetches.end_fetch(request)


async def _send(fetches: Fetches, request_id: int, found: FetchAnswer, began: float) -> None:
    """Send the answer to a fetch and close it."""
    with found:
        try:
            prefix = await encode_long_reply(request_id, found.reply, found.size, fetches.broker.turn)
            prefix = fetches.encode_answer(request_id, found, began, prefix)
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it can be answered
            fetches.queue_error(request_id, as_seglog_error(error, FetchRequest.api), began)
            await flush(fetches.sender)
        else:
            await send_frame(fetches.sender, [prefix, *found.slices])
