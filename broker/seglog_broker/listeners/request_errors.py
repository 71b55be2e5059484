"""The errors of requests: those that stand for exceptions, and their counts."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from seglog_broker.logger import get_logger
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_protocol import messages
from seglog_protocol.errors import OutOfResourcesError, SeglogError, UnknownServerError, without_frames

AppendOutcome = messages.AppendReply | SeglogError
"""The reply to an append: the results of its batches, or the error of the request as a whole."""

_WITH_RESULTS: Final = (
    messages.AppendReply,
    messages.FetchReply,
    messages.FlushReply,
    messages.OffsetsReply,
    messages.TruncateReply,
)

log = get_logger()


def append_errors(outcomes: Sequence[AppendOutcome]) -> list[SeglogError]:
    """The errors in the outcomes of appends."""
    errors: list[SeglogError] = []
    for outcome in outcomes:
        if isinstance(outcome, SeglogError):
            errors.append(outcome)
        else:
            errors += [result.error for result in outcome.partitions if result.error is not None]
    return errors


def count_errors(counts: Counter[str], reply: messages.Message | SeglogError) -> None:
    """Count every error in ``reply``, by code: that of the whole request, or those of its partitions."""
    if isinstance(reply, SeglogError):
        counts[reply.code] += 1
    elif isinstance(reply, _WITH_RESULTS):
        for result in reply.partitions:
            if result.error is not None:
                counts[result.error.code] += 1
    elif isinstance(reply, messages.TopicsReply):
        counts.update(error.code for error in reply.unknown)


def as_seglog_error(error: Exception, api: str) -> SeglogError:
    """The error reply for ``error``, raised while serving ``api``; logged here unless the client is at fault."""
    if isinstance(error, SeglogError):
        return without_frames(error)
    if isinstance(error, OSError):
        log.error("request_failed", api=api, error=why(error))
        return storage_error(f"disk error on the broker: {error.strerror or type(error).__name__}", error)
    if isinstance(error, MemoryError):
        log.error("request_failed", api=api, error="out of memory")
        return OutOfResourcesError("the broker is out of memory for this request; try again later")
    log.error("request_crashed", api=api, exc_info=error)
    return UnknownServerError(f"internal error while handling {api}; see the broker log")
