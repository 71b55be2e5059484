"""Errors of groups as Kafka's codes."""

from typing import Final

from seglog_broker.listeners.kafka.errors import Failure, error_code, error_message
from seglog_broker.listeners.replies import as_seglog_error
from seglog_protocol.errors import MessageTooLargeError
from seglog_protocol.kafka.error_codes import ErrorCode

_OF_BROKER: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT}
)
"""Codes for what is wrong with the broker or its disk for a while."""


def group_failure(error: Exception, api: str) -> Failure:
    """What a response says of ``error``, raised by a request about a group; one that is a bug is logged.

    What is wrong with the broker or its disk for a while is COORDINATOR_NOT_AVAILABLE: it makes clients look for the
    coordinator and try again, where the codes of partitions are final for them. MESSAGE_TOO_LARGE would be about the
    broker's own record.
    """
    known = as_seglog_error(error, api)
    code = error_code(known)
    if isinstance(known, MessageTooLargeError):
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if api == "OffsetCommit" else ErrorCode.UNKNOWN_SERVER_ERROR
    elif code in _OF_BROKER:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return Failure(code, error_message(known))


def group_code(error: Exception | None, api: str) -> ErrorCode:
    """The code of ``group_failure``; NONE without an error."""
    return ErrorCode.NONE if error is None else group_failure(error, api).code
