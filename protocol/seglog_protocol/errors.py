"""The one error table: wire code <-> exception, whose fault it is, and whether trying again can help.

Every error answers three questions. *Whose fault*: the branch of the tree. *Where*: facts, kept as attributes and sent
along on the wire. *What now*: the message, one sentence for a person, and ``retriable`` for a program.

    SeglogError
    |- ProtocolError   bytes that are no message: LocalProtocolError (we made them), RemoteProtocolError (they came in)
    |- RequestError    the request cannot be served as asked: the asker's fault
    |- StorageError    the broker's own disk or files are in the way: the broker's fault
    `- ClientError     never on the wire: raised by the client about its own connection and calls

Wire codes are Kafka's names where Kafka has the same error; ``kafka_code`` is Kafka's number for it, for the Kafka-wire
listener, and -1 (UNKNOWN_SERVER_ERROR) where Kafka has no such thing. Bugs stay ``assert``, ``TypeError`` and
``ValueError``, and crash.
"""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Final

Fact = Any  # what msgpack can carry: int, str, bool, None, bytes, and lists and maps of them


class SeglogError(Exception):
    """Anything seglog raises on purpose.

    ``facts`` are given as keywords and readable as attributes; each class declares the ones it promises, with a
    default, so that a peer of another version that leaves one out does not turn an error into an AttributeError.
    """

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    kafka_code: ClassVar[int] = -1
    retriable: bool = False

    def __init__(self, message: str, /, **facts: Fact) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name in promised_facts(type(self)) & facts.keys():
            setattr(self, name, facts[name])

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the facts when an error crosses a process boundary."""
        return (_rebuild, (type(self), self.message, self.facts, self.retriable))


def promised_facts(cls: type[SeglogError]) -> frozenset[str]:
    """The facts a class declares; others, of a newer peer, stay in ``facts`` and touch nothing else."""
    found = _promised_of.get(cls)
    if found is None:
        bases = (base for base in cls.__mro__ if issubclass(base, SeglogError) and base is not SeglogError)
        found = _promised_of[cls] = frozenset(name for base in bases for name in inspect.get_annotations(base))
    return found


_promised_of: dict[Any, frozenset[str]] = {}  # kept: one request may meet thousands of errors


def _rebuild(cls: type[SeglogError], message: str, facts: dict[str, Fact], retriable: bool) -> SeglogError:
    error = cls(message, **facts)
    error.retriable = retriable
    return error


# --- Protocol ---------------------------------------------------------------------------------------------------------


class ProtocolError(SeglogError):
    """Bytes that do not form what the protocol allows."""

    code = "INVALID_REQUEST"
    kafka_code = 42


class LocalProtocolError(ProtocolError):
    """We were about to send something the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol does not allow; the connection cannot go on."""


class FrameTooLargeError(RemoteProtocolError):
    """A frame announces more bytes than the limit; nothing of it has been read."""

    code = "FRAME_TOO_LARGE"
    size: int = -1
    limit: int = -1


# --- Requests ---------------------------------------------------------------------------------------------------------


class RequestError(SeglogError):
    """The request cannot be served as asked."""

    code = "INVALID_REQUEST"
    kafka_code = 42


class InvalidRequestError(RequestError):
    """A field is missing, unknown, or not of its type or range."""

    field: str = ""


class UnsupportedApiError(RequestError):
    """No such api."""

    code = "UNSUPPORTED_API"
    kafka_code = 35
    api: str = ""


class UnsupportedVersionError(RequestError):
    """The api exists, but not in that version."""

    code = "UNSUPPORTED_VERSION"
    kafka_code = 35
    api: str = ""
    minimum: int = -1
    maximum: int = -1


class UnknownTopicError(RequestError):
    """No topic of that name; ``nearest`` is the most similar one there is, or empty."""

    code = "UNKNOWN_TOPIC"
    kafka_code = 3
    topic: str = ""
    nearest: str = ""


class UnknownPartitionError(RequestError):
    """The topic exists but has no such partition; it has ``partitions``, numbered from 0."""

    code = "UNKNOWN_PARTITION"
    kafka_code = 3
    topic: str = ""
    partition: int = -1
    partitions: int = -1


class InconsistentTopicIdError(RequestError):
    """The topic was deleted and made again: positions belong to the former one, and this one has id ``topic_id``.

    Trying again cannot help; a new consumer begins anew.
    """

    code = "INCONSISTENT_TOPIC_ID"
    kafka_code = 103
    topic: str = ""
    partition: int = -1
    topic_id: str = ""


class InvalidTopicError(RequestError):
    """Not a possible topic name."""

    code = "INVALID_TOPIC_EXCEPTION"
    kafka_code = 17
    topic: str = ""


class TopicExistsError(RequestError):
    """A topic of that name exists already."""

    code = "TOPIC_ALREADY_EXISTS"
    kafka_code = 36
    topic: str = ""


class InvalidPartitionsError(RequestError):
    """Not a possible number of partitions."""

    code = "INVALID_PARTITIONS"
    kafka_code = 37


class InvalidConfigError(RequestError):
    """An unknown configuration key or a value outside its range; ``key`` names it."""

    code = "INVALID_CONFIG"
    kafka_code = 40
    key: str = ""


class PolicyViolationError(RequestError):
    """The topic's own rules forbid it."""

    code = "POLICY_VIOLATION"
    kafka_code = 44


class OffsetOutOfRangeError(RequestError):
    """The offset lies outside [earliest, latest]; ``latest`` is the end, where the next record will go.

    ``reason`` says why: "expired", "truncated" or, where their files were lost, "missing" for records that were there
    once, else "beyond_end".
    """

    code = "OFFSET_OUT_OF_RANGE"
    kafka_code = 1
    topic: str = ""
    partition: int = -1
    requested: int = -1
    earliest: int = -1
    latest: int = -1
    reason: str = ""


class InvalidRecordError(RequestError):
    """A record batch that cannot be appended as it is; ``record`` is the index of the bad record, -1 for the header."""

    code = "INVALID_RECORD"
    kafka_code = 87
    record: int = -1


class InvalidTimestampError(RequestError):
    """A timestamp outside what the topic allows; ``record`` is the index of the bad record, -1 for the header."""

    code = "INVALID_TIMESTAMP"
    kafka_code = 32
    record: int = -1
    timestamp: int = -1


class UnsupportedMagicError(InvalidRecordError):
    """A batch in a format other than Kafka's magic 2."""

    magic: int = -1


class CorruptBatchError(RequestError):
    """The bytes of a sent batch do not match their checksum or their own lengths. Sending it again may help."""

    code = "CORRUPT_MESSAGE"
    kafka_code = 2
    retriable = True


class MessageTooLargeError(RequestError):
    """A batch is larger than ``max.message.bytes`` of its topic."""

    code = "MESSAGE_TOO_LARGE"
    kafka_code = 10
    size: int = -1
    limit: int = -1


class RecordListTooLargeError(RequestError):
    """A batch is larger than ``segment.bytes`` of its topic, so no segment could hold it."""

    code = "RECORD_LIST_TOO_LARGE"
    kafka_code = 18
    size: int = -1
    limit: int = -1


class OutOfOrderSequenceError(RequestError):
    """An idempotent producer's batch is not the next one of its producer, and no repetition of a recent one either.

    It begins at ``sequence`` where ``expected`` would follow. Sending it again cannot help.
    """

    code = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    kafka_code = 45
    producer_id: int = -1
    sequence: int = -1
    expected: int = -1


class InvalidProducerEpochError(RequestError):
    """A newer instance of the producer has taken over: its epoch is ``current_epoch``, the batch has an older one."""

    code = "INVALID_PRODUCER_EPOCH"
    kafka_code = 47
    producer_id: int = -1
    producer_epoch: int = -1
    current_epoch: int = -1


class InvalidTransactionStateError(RequestError):
    """A batch without transaction from a producer whose transaction is open since ``first_offset``."""

    code = "INVALID_TXN_STATE"
    kafka_code = 48
    producer_id: int = -1
    first_offset: int = -1


class RequestCancelledError(RequestError):
    """The asker cancelled this request."""

    code = "REQUEST_CANCELLED"


class BrokerStoppingError(RequestError):
    """The broker is shutting down; connect again."""

    code = "BROKER_STOPPING"
    kafka_code = 8
    retriable = True


# --- Storage ----------------------------------------------------------------------------------------------------------


class StorageError(SeglogError):
    """The broker's own files or disk are in the way."""

    code = "KAFKA_STORAGE_ERROR"
    kafka_code = 56


class DiskFullError(StorageError):
    """The disk has less than ``hard`` bytes left, or none: nothing is written until ``soft`` are ``free`` again.

    Reading, deleting and expiring go on, so trying again later can help.
    """

    code = "DISK_FULL"
    retriable = True
    free: int = -1
    hard: int = -1
    soft: int = -1


class PartitionRecoveringError(StorageError):
    """The partition is being read after a stop that was not clean, and is served when that is done: try again.

    ``read_bytes`` of ``bytes`` have been read so far.
    """

    code = "PARTITION_RECOVERING"
    kafka_code = 5
    retriable = True
    topic: str = ""
    partition: int = -1
    read_bytes: int = -1
    bytes: int = -1


class OutOfResourcesError(StorageError):
    """The broker has no file descriptor or no memory left for this at the moment; trying again later can help."""

    code = "OUT_OF_RESOURCES"
    retriable = True


class CorruptRecordError(StorageError):
    """Stored or received bytes do not hold what their format promises.

    ``path`` and ``position`` (bytes) say where; [``start_offset``, ``next_offset``) is the range that cannot be read,
    as far as it is known (-1 unknown); reading may go on at ``next_offset``.
    """

    code = "CORRUPT_RECORD"
    kafka_code = 2
    topic: str = ""
    partition: int = -1
    path: str = ""
    position: int = -1
    start_offset: int = -1
    next_offset: int = -1


class DecompressionError(CorruptRecordError):
    """A compressed block is no valid stream of its codec."""


class DecompressedTooLargeError(CorruptRecordError):
    """A compressed block opens to more than ``decompressed_batch_bytes_max`` bytes."""

    code = "DECOMPRESSED_TOO_LARGE"
    limit: int = -1


class PartitionReadOnlyError(StorageError):
    """An earlier write or fsync failed; nothing more is appended to this partition until an operator has looked."""

    code = "PARTITION_READ_ONLY"
    topic: str = ""
    partition: int = -1
    reason: str = ""


class PartitionOfflineError(StorageError):
    """The partition's directory could not be opened; other partitions are served."""

    code = "PARTITION_OFFLINE"
    topic: str = ""
    partition: int = -1
    reason: str = ""


class LogDirectoryError(StorageError):
    """The log directory cannot be used: locked, foreign, of a newer format, not writable."""

    code = "LOG_DIRECTORY"
    path: str = ""


class UnknownServerError(StorageError):
    """Internal error in the broker; its log has the traceback."""

    code = "UNKNOWN_SERVER_ERROR"
    kafka_code = -1


class UnknownCodeError(SeglogError):
    """An error whose code this version does not know; it still says whether trying again can help."""

    wire_code: str = ""


# --- Client (never on the wire) ---------------------------------------------------------------------------------------


class ClientError(SeglogError):
    """Raised by the client about its own connection and calls."""

    code = "CLIENT"


class NotReachableError(ClientError):
    """No broker answered at ``server`` within the time given."""

    server: str = ""


class InconsistentClusterIdError(ClientError):
    """At ``server`` is another broker than before, or its log directory was replaced.

    Offsets and sequences mean something else there: producers and consumers end with it, new ones begin anew.
    """

    server: str = ""
    cluster_id: str = ""
    expected: str = ""


class ConnectionLostError(ClientError):
    """The connection broke while a call was waiting; what it asked may or may not have happened."""

    retriable = True
    server: str = ""


class ClientClosedError(ClientError):
    """The object was closed by its owner."""


class ClientTimeoutError(ClientError, TimeoutError):
    """No answer within the time given; the connection stays usable."""


class DeliveryFailed(ClientError):  # noqa: N818 - the name programs write
    """Records that were not acknowledged, ``records`` in all.

    ``failures`` lists (topic, partition, record count, cause) of the batches they were in: of very many the newest.
    """

    failures: list[tuple[str, int, int, Exception]]
    records: int = 0


# --- The table --------------------------------------------------------------------------------------------------------

WIRE_ERRORS: Final[tuple[type[SeglogError], ...]] = (
    RemoteProtocolError,
    FrameTooLargeError,
    InvalidRequestError,
    UnsupportedApiError,
    UnsupportedVersionError,
    UnknownTopicError,
    UnknownPartitionError,
    InconsistentTopicIdError,
    InvalidTopicError,
    TopicExistsError,
    InvalidPartitionsError,
    InvalidConfigError,
    PolicyViolationError,
    OffsetOutOfRangeError,
    InvalidRecordError,
    InvalidTimestampError,
    CorruptBatchError,
    MessageTooLargeError,
    RecordListTooLargeError,
    OutOfOrderSequenceError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    RequestCancelledError,
    BrokerStoppingError,
    StorageError,
    DiskFullError,
    OutOfResourcesError,
    PartitionRecoveringError,
    CorruptRecordError,
    DecompressedTooLargeError,
    PartitionReadOnlyError,
    PartitionOfflineError,
    UnknownServerError,
)
"""Every error a broker may answer with. Where two share a code, the last one is what the code decodes to."""

BY_CODE: Final[Mapping[str, type[SeglogError]]] = {error.code: error for error in WIRE_ERRORS}

_RESERVED: Final = frozenset({"code", "message", "retriable"})


def error_to_wire(error: SeglogError) -> dict[str, Fact]:
    """The error as a reply carries it: ``{"code", "message", "retriable", ...facts}``."""
    wire = {name: value for name, value in error.facts.items() if name not in _RESERVED}
    return wire | {"code": error.code, "message": error.message, "retriable": error.retriable}


def error_from_wire(wire: Mapping[str, Fact]) -> SeglogError:
    """The exception for a reply's error map.

    A code of a newer broker becomes UnknownCodeError with its own ``retriable``; a map without a code is a
    RemoteProtocolError, returned, not raised. A promised fact of another type than its default is dropped: whoever
    reads the attribute relies on it.
    """
    code, message = wire.get("code"), wire.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return RemoteProtocolError("the broker answered with an error that has no code or no message")
    facts = {name: value for name, value in wire.items() if type(name) is str and name not in _RESERVED}
    known = BY_CODE.get(code)
    error: SeglogError
    if known is None:
        error = UnknownCodeError(f"{message} [{code}]", **(facts | {"wire_code": code}))
    else:
        for name in promised_facts(known) & facts.keys():
            if type(facts[name]) is not type(getattr(known, name)):
                del facts[name]
        error = known(message, **facts)
    error.retriable = wire.get("retriable") is True
    return error
