"""The errors of the broker as error codes and messages of Kafka's protocol: the one table between them.

Most errors carry Kafka's code themselves (``SeglogError.kafka_code``). Here is what depends on the api and its version,
and what Kafka has no code for.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_protocol import errors
from seglog_protocol.kafka.error_codes import ErrorCode

_OWN: Final[Mapping[type[errors.SeglogError], ErrorCode]] = MappingProxyType(
    {
        errors.DiskFullError: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.OutOfResourcesError: ErrorCode.REQUEST_TIMED_OUT,
        errors.PartitionReadOnlyError: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.PartitionOfflineError: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.PartitionRecoveringError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.SegmentAwaitedError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.BrokerStoppingError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.DecompressedTooLargeError: ErrorCode.CORRUPT_MESSAGE,
        errors.RequestCancelledError: ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors whose code on Kafka's wire differs from ``kafka_code``.

While a partition is loaded or the broker stops, NOT_LEADER_OR_FOLLOWER makes clients ask for metadata and try again;
other codes are final for some of them. What needs an operator is KAFKA_STORAGE_ERROR, which they try again, too.
"""


MESSAGE_CHARACTERS_MAX: Final = 1_000
"""Of an error in a response: a string has at most 32,767 bytes, and so may a topic's name that the message repeats."""


def error_message(error: errors.SeglogError) -> str:
    """The sentence of ``error``, cut to what a response can hold; Kafka's where the client may not do something."""
    if isinstance(error, errors.AuthorizationError):
        return _REFUSED.get(type(error), error.message)
    return error.message[:MESSAGE_CHARACTERS_MAX]


def error_code(error: errors.SeglogError) -> ErrorCode:
    """Kafka's code for ``error``."""
    own = _OWN.get(type(error))
    return ErrorCode(error.kafka_code) if own is None else own


TOPIC_REFUSED: Final = "Topic authorization failed."
GROUP_REFUSED: Final = "Group authorization failed."
"""Kafka's sentences. They do not say what is missing: that is for the log."""

_REFUSED: Final[Mapping[type[errors.SeglogError], str]] = MappingProxyType(
    {
        errors.TopicAuthorizationError: TOPIC_REFUSED,
        errors.GroupAuthorizationError: GROUP_REFUSED,
        errors.TransactionalIdAuthorizationError: "Transactional Id authorization failed.",
    }
)


class Failure(NamedTuple):
    """A code of Kafka's and a sentence, as they stand in many responses."""

    code: ErrorCode
    message: str | None


class Refused(Exception):  # noqa: N818 - answered, never raised to a caller of the listener
    """A part of a request is refused with a code that no SeglogError has."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.failure = Failure(code, message and message[:MESSAGE_CHARACTERS_MAX])


def failure_of(error: Exception, api: str) -> Failure:
    """Code and message of ``error`` in a response; a bug is logged."""
    if isinstance(error, Refused):
        return error.failure
    known = as_seglog_error(error, api)
    return Failure(error_code(known), error_message(known))


_OF_BROKER: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT}
)
"""Codes of passing errors of the broker or its disk."""


def group_failure(error: Exception, api: str) -> Failure:
    """Code and message of ``error``, raised by a request about a group; a bug is logged.

    A passing error of the broker or its disk is COORDINATOR_NOT_AVAILABLE: clients look for the coordinator and retry,
    where the codes of partitions are final for them. MESSAGE_TOO_LARGE would be about the
    broker's own record.
    """
    if isinstance(error, Refused):
        return error.failure
    known = as_seglog_error(error, api)
    code = error_code(known)
    if isinstance(known, errors.MessageTooLargeError):
        is_commit = api in {"OffsetCommit", "TxnOffsetCommit"}
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_commit else ErrorCode.UNKNOWN_SERVER_ERROR
    elif code in _OF_BROKER:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return Failure(code, error_message(known))


def group_code(error: Exception | None, api: str) -> ErrorCode:
    """The code of ``group_failure``; NONE without an error."""
    return ErrorCode.NONE if error is None else group_failure(error, api).code


_FENCED_SINCE: Final[Mapping[str, int]] = MappingProxyType(
    {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
)
"""Versions from which clients know PRODUCER_FENCED. Before, and in other apis, it is INVALID_PRODUCER_EPOCH."""

_ABORTABLE_SINCE: Final[Mapping[str, int]] = MappingProxyType(
    {"InitProducerId": 5, "AddOffsetsToTxn": 4, "EndTxn": 4, "TxnOffsetCommit": 4}
)
"""Versions from which clients know TRANSACTION_ABORTABLE. Before, the producer has to end: INVALID_TXN_STATE."""

_NEVER: Final = 1_000


def transaction_code(error: Exception, api: str, version: int) -> ErrorCode:
    """The code for ``error``, raised by a request about a transaction; a bug is logged."""
    code = group_failure(error, api).code
    if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE.get(api, _NEVER):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE.get(api, _NEVER):
        return ErrorCode.INVALID_TXN_STATE
    return code
