"""The one error table: wire code <-> exception, who caused it, and whether a retry can help.

Every error answers three questions. *Whose fault*: the branch of the tree. *Where*: facts, kept as attributes and sent
on the wire. *What now*: the message, one sentence for a person, and ``retriable`` for a program.

    SeglogError
    |- ProtocolError   invalid bytes: LocalProtocolError (about to be sent), RemoteProtocolError (received)
    |- RequestError    the request cannot be served as asked: the client's fault
    |- StorageError    disk or file errors on the broker: the broker's fault
    `- ClientError     never on the wire: raised by the client about its own connection and calls

Wire codes are Kafka's names where Kafka has the same error; ``kafka_name`` is the name of one that comes near. By
them, or by those of its bases, an error has Kafka's number, ``kafka_code``, for the Kafka-wire listener: -1
(UNKNOWN_SERVER_ERROR) where Kafka has none. Bugs stay ``assert``, ``TypeError`` and ``ValueError``, and crash.
"""

import inspect
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, TypeVar

from seglog_protocol.texts import members_text

Fact = Any  # a value that msgpack can encode: int, str, bool, None, bytes, and lists and maps of them


class _KafkaCode:
    """Kafka's number for an error or for its class, -1 where Kafka has none."""

    def __get__(self, error: object, kind: Any) -> int:
        """The number of ``kind``."""
        return _kafka_code(kind)


class SeglogError(Exception):
    """Base class of every error that seglog raises on purpose.

    ``facts`` are given as keywords and readable as attributes. Each class declares its facts with defaults, so that a
    fact left out by a peer of another version does not become an AttributeError.
    """

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    kafka_name: ClassVar[str] = ""
    kafka_code = _KafkaCode()
    retriable: bool = False

    def __init_subclass__(
        cls, *, code: str | None = None, kafka_name: str | None = None, retriable: bool | None = None
    ) -> None:
        """Set the attributes that a class does not have from its base."""
        for name, value in (("code", code), ("kafka_name", kafka_name), ("retriable", retriable)):
            if value is not None:
                setattr(cls, name, value)

    def __init__(self, message: str, /, **facts: Fact) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name in promised_facts(type(self)) & facts.keys():
            setattr(self, name, facts[name])

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the facts when an error crosses a process boundary."""
        return (_rebuild, (type(self), self.message, self.facts, self.retriable))


@cache
def _kafka_code(cls: Any) -> int:
    from seglog_protocol.kafka.error_codes import ErrorCode  # noqa: PLC0415 - with Kafka's wire, which few need

    names = (own.get("kafka_name") or own.get("code", "") for own in map(vars, cls.__mro__))
    return next(int(ErrorCode[name]) for name in names if name in ErrorCode.__members__)


def promised_facts(cls: type[SeglogError]) -> frozenset[str]:
    """The facts that a class declares; others, from a newer peer, are kept in ``facts`` only."""
    found = _promised_of.get(cls)
    if found is None:
        bases = (base for base in cls.__mro__ if issubclass(base, SeglogError) and base is not SeglogError)
        found = _promised_of[cls] = frozenset(name for base in bases for name in inspect.get_annotations(base))
    return found


_promised_of: dict[Any, frozenset[str]] = {}  # a cache: one request may have thousands of errors


def _rebuild(cls: type[SeglogError], message: str, facts: dict[str, Fact], retriable: bool) -> SeglogError:
    error = cls(message, **facts)
    error.retriable = retriable
    return error


# --- Protocol ---------------------------------------------------------------------------------------------------------


class ProtocolError(SeglogError, code="INVALID_REQUEST"):
    """Bytes that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """A message about to be sent that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol does not allow; the connection is unusable."""


class FrameTooLargeError(RemoteProtocolError, code="FRAME_TOO_LARGE"):
    """A frame announces more bytes than the limit; its content has not been read."""

    size: int = -1
    limit: int = -1


class WrongPortError(RemoteProtocolError, code="WRONG_PORT"):
    """A seglog client has reached the port of Kafka's clients. The broker's native ``port``; -1 if that is unknown."""

    port: int = -1


class TlsRequiredError(RemoteProtocolError, code="TLS_REQUIRED"):
    """The port speaks TLS, and the client has begun without."""


# --- Requests ---------------------------------------------------------------------------------------------------------


class RequestError(SeglogError, code="INVALID_REQUEST"):
    """The request cannot be served as asked."""


class InvalidRequestError(RequestError):
    """A field is missing, unknown, or not of its type or range."""

    field: str = ""


class TransactionalIdMissingError(InvalidRequestError, kafka_name="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
    """A batch belongs to a transaction, and the request that has it names no transactional id."""


class UnsupportedApiError(RequestError, code="UNSUPPORTED_API", kafka_name="UNSUPPORTED_VERSION"):
    """The broker has no such api."""

    api: str = ""


class UnsupportedVersionError(RequestError, code="UNSUPPORTED_VERSION"):
    """The broker has the api, but not in that version."""

    api: str = ""
    minimum: int = -1
    maximum: int = -1


class UnknownTopicError(RequestError, code="UNKNOWN_TOPIC", kafka_name="UNKNOWN_TOPIC_OR_PARTITION"):
    """The topic does not exist; ``nearest`` is the most similar existing name, or empty."""

    topic: str = ""
    nearest: str = ""


class UnknownPartitionError(RequestError, code="UNKNOWN_PARTITION", kafka_name="UNKNOWN_TOPIC_OR_PARTITION"):
    """The topic has no such partition; it has ``partitions`` of them, numbered from 0."""

    topic: str = ""
    partition: int = -1
    partitions: int = -1


class InconsistentTopicIdError(RequestError, code="INCONSISTENT_TOPIC_ID"):
    """The topic was deleted and recreated: offsets belong to the old one, and the new one has id ``topic_id``.

    A retry cannot help; create a new producer or consumer.
    """

    topic: str = ""
    partition: int = -1
    topic_id: str = ""


class InvalidTopicError(RequestError, code="INVALID_TOPIC_EXCEPTION"):
    """The topic name is not valid, or it is a topic that only the broker itself makes and writes.

    ``other``: the topic whose name differs in dots and underscores only, which metrics could not tell apart.
    """

    topic: str = ""
    other: str = ""


class TopicExistsError(RequestError, code="TOPIC_ALREADY_EXISTS"):
    """The topic already exists."""

    topic: str = ""


class InvalidPartitionsError(RequestError, code="INVALID_PARTITIONS"):
    """The number of partitions is not valid."""


class InvalidConfigError(RequestError, code="INVALID_CONFIG"):
    """An unknown configuration key or a value outside its range; ``key`` names it."""

    key: str = ""


class PolicyViolationError(RequestError, code="POLICY_VIOLATION"):
    """The topic's configuration forbids the operation."""


class OffsetOutOfRangeError(RequestError, code="OFFSET_OUT_OF_RANGE"):
    """The offset is outside [earliest, latest]; ``latest`` is the end of the log, the offset of the next append.

    ``reason`` is "expired", "truncated" or "missing" (files were lost) for records that existed once, else
    "beyond_end".
    """

    topic: str = ""
    partition: int = -1
    requested: int = -1
    earliest: int = -1
    latest: int = -1
    reason: str = ""


class InvalidRecordError(RequestError, code="INVALID_RECORD"):
    """A record batch that cannot be appended; ``record`` is the index of the first bad record, -1 for the header.

    ``records`` has the indexes of all bad records, of very many only the first.
    """

    record: int = -1
    records: Sequence[int] = range(0)


class InvalidTimestampError(RequestError, code="INVALID_TIMESTAMP"):
    """A timestamp outside the topic's range; ``record`` and ``records`` are those of InvalidRecordError."""

    record: int = -1
    records: Sequence[int] = range(0)
    timestamp: int = -1


class UnsupportedMagicError(InvalidRecordError):
    """A batch in a format other than Kafka's magic 2."""

    magic: int = -1


class CorruptBatchError(RequestError, code="CORRUPT_MESSAGE", retriable=True):
    """The bytes of a sent batch do not match their checksum or their lengths. Sending it again may help."""


class MessageTooLargeError(RequestError, code="MESSAGE_TOO_LARGE"):
    """A batch is larger than ``max.message.bytes`` of its topic."""

    size: int = -1
    limit: int = -1


class RecordListTooLargeError(RequestError, code="RECORD_LIST_TOO_LARGE"):
    """A batch is larger than ``segment.bytes`` of its topic, so no segment could hold it."""

    size: int = -1
    limit: int = -1


class OutOfOrderSequenceError(RequestError, code="OUT_OF_ORDER_SEQUENCE_NUMBER"):
    """An idempotent producer's batch is neither its next one nor a duplicate of a recent one.

    It begins at ``sequence``, not at ``expected``. Sending it again cannot help.
    """

    producer_id: int = -1
    sequence: int = -1
    expected: int = -1


class InvalidProducerEpochError(RequestError, code="INVALID_PRODUCER_EPOCH"):
    """A newer instance of the producer exists, with epoch ``current_epoch``; the batch has an older epoch."""

    producer_id: int = -1
    producer_epoch: int = -1
    current_epoch: int = -1


class InvalidTransactionStateError(RequestError, code="INVALID_TXN_STATE"):
    """What was asked does not go with the producer's transaction, or with its not having one.

    A batch outside of the transaction that the producer has open since ``first_offset``, or in none; an end that
    contradicts the one that was decided.
    """

    producer_id: int = -1
    producer_epoch: int = -1
    first_offset: int = -1


class RequestCancelledError(RequestError, code="REQUEST_CANCELLED"):
    """The client cancelled this request."""


class BrokerStoppingError(RequestError, code="BROKER_STOPPING", kafka_name="BROKER_NOT_AVAILABLE", retriable=True):
    """The broker, or this connection, is being shut down; connect again."""


# --- Security ---------------------------------------------------------------------------------------------------------


class AuthenticationError(RequestError, code="SASL_AUTHENTICATION_FAILED"):
    """Who the client is has not been proven: an unknown user, a wrong password or token, or none. Never says which."""


class UnsupportedMechanismError(AuthenticationError, code="UNSUPPORTED_SASL_MECHANISM"):
    """The listener does not take this SASL mechanism; ``mechanisms`` are those that it takes."""

    mechanisms: list[str] = []  # noqa: RUF012 - never changed


class AuthenticationRequiredError(AuthenticationError, code="ILLEGAL_SASL_STATE"):
    """A request came before the client was authenticated, or out of order; ``mechanisms`` are those to choose from."""

    mechanisms: list[str] = []  # noqa: RUF012 - never changed


class AuthorizationError(RequestError, code="CLUSTER_AUTHORIZATION_FAILED"):
    """The ``principal`` may not do this: neither super.users nor a rule (an ACL) lets it."""

    principal: str = ""


class TopicAuthorizationError(AuthorizationError, code="TOPIC_AUTHORIZATION_FAILED"):
    """The ``principal`` may not do this with a topic."""

    topic: str = ""


class GroupAuthorizationError(AuthorizationError, code="GROUP_AUTHORIZATION_FAILED"):
    """The ``principal`` may not do this with a group."""

    group: str = ""


class TransactionalIdAuthorizationError(AuthorizationError, code="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
    """The ``principal`` may not write with a transactional id."""

    transactional_id: str = ""


class UnknownUserError(RequestError, code="RESOURCE_NOT_FOUND"):
    """There is no such account, or it has no such credential."""

    user: str = ""


class DuplicateUserError(RequestError, code="DUPLICATE_RESOURCE"):
    """One request names the same credential twice."""

    user: str = ""


class UnacceptableCredentialError(RequestError, code="UNACCEPTABLE_CREDENTIAL"):
    """A name, salt or number of iterations that a credential may not have."""

    user: str = ""


# --- Groups -----------------------------------------------------------------------------------------------------------


class GroupError(RequestError):
    """A request about a consumer group cannot be served; ``group`` names it, or what else has a coordinator."""

    group: str = ""


class CoordinatorLoadingError(GroupError, code="COORDINATOR_LOAD_IN_PROGRESS", retriable=True):
    """The broker still loads groups and committed offsets, or transactions, after a start: try again."""


class CoordinatorNotAvailableError(GroupError, code="COORDINATOR_NOT_AVAILABLE", retriable=True):
    """The coordinator's records could not be written, or its topic cannot be created now: try again."""


class IllegalGenerationError(GroupError, code="ILLEGAL_GENERATION"):
    """The member is not of the group's current ``generation``: it must rejoin."""

    generation: int = -1


class InconsistentGroupProtocolError(GroupError, code="INCONSISTENT_GROUP_PROTOCOL"):
    """The member's protocol type or assignors have nothing in common with those of the group's other members."""


class InvalidGroupIdError(GroupError, code="INVALID_GROUP_ID"):
    """The group id is empty, or too long for its topic."""


class UnknownMemberError(GroupError, code="UNKNOWN_MEMBER_ID"):
    """The group has no such member (any more): rejoin as a new member. ``member_id`` names it."""

    member_id: str = ""


class InvalidSessionTimeoutError(GroupError, code="INVALID_SESSION_TIMEOUT"):
    """The session timeout (ms) is outside of ``minimum`` to ``maximum``."""

    minimum: int = -1
    maximum: int = -1


class RebalanceInProgressError(GroupError, code="REBALANCE_IN_PROGRESS"):
    """The group rebalances: the member must rejoin."""


class NonEmptyGroupError(GroupError, code="NON_EMPTY_GROUP"):
    """The group has live members, which ``members`` names, and the request wants one without."""

    members: list[str] = []  # noqa: RUF012 - replaced, never changed

    @classmethod
    def of(cls, group: str, members: Collection[tuple[str, str]]) -> "NonEmptyGroupError":
        """The error that says who the members are, by member id and host."""
        return cls(
            f"group {group!r} has live members: stop them first; members: {members_text(members)}",
            group=group,
            members=[member_id for member_id, _ in members],
        )


class UnknownGroupError(GroupError, code="GROUP_ID_NOT_FOUND"):
    """There is no such group. Kafka calls it GROUP_ID_NOT_FOUND."""


class MemberIdRequiredError(GroupError, code="MEMBER_ID_REQUIRED"):
    """A new member must join again with ``member_id``, which this error assigns to it."""

    member_id: str = ""


class GroupMaxSizeError(GroupError, code="GROUP_MAX_SIZE_REACHED"):
    """The group has as many members as ``group.max.size`` allows."""


class FencedInstanceError(GroupError, code="FENCED_INSTANCE_ID"):
    """Another consumer has joined with the same group instance id, and took the member's place."""

    instance_id: str = ""


class GroupSubscribedError(GroupError, code="GROUP_SUBSCRIBED_TO_TOPIC"):
    """Live members of the group are subscribed to the topic, so its offsets cannot be deleted."""

    topic: str = ""


class MetadataTooLargeError(GroupError, code="OFFSET_METADATA_TOO_LARGE"):
    """The text that comes with a committed offset has more than ``limit`` bytes (``offset.metadata.max.bytes``)."""

    size: int = -1
    limit: int = -1


class FencedMemberEpochError(GroupError, code="FENCED_MEMBER_EPOCH"):
    """The group does not know the member's epoch: rejoin with epoch 0."""


class UnreleasedInstanceError(GroupError, code="UNRELEASED_INSTANCE_ID"):
    """The group instance id belongs to a member that has not left."""

    instance_id: str = ""


class UnsupportedAssignorError(GroupError, code="UNSUPPORTED_ASSIGNOR"):
    """The broker has no such assignor."""


class StaleMemberEpochError(GroupError, code="STALE_MEMBER_EPOCH"):
    """The member's epoch is not its current one; it gets that with its next heartbeat."""


class InvalidRegularExpressionError(GroupError, code="INVALID_REGULAR_EXPRESSION"):
    """The regular expression by which the member subscribes to topics is not valid."""


class InvalidRecordStateError(RequestError, code="INVALID_RECORD_STATE"):
    """A record cannot be acknowledged: the member does not have it, or not any more. ``offset`` is the first such."""

    offset: int = -1


class UnstableOffsetCommitError(GroupError, code="UNSTABLE_OFFSET_COMMIT", retriable=True):
    """An open transaction has committed another offset for the partition: try again when it has ended."""

    topic: str = ""
    partition: int = -1


# --- Transactions -----------------------------------------------------------------------------------------------------


class TransactionError(RequestError):
    """A request about a transaction cannot be served as asked; ``transactional_id`` names the producer."""

    transactional_id: str = ""


class ProducerFencedError(TransactionError, code="PRODUCER_FENCED"):
    """A newer producer has the transactional id, or the broker has aborted the transaction: make a new producer."""


class InvalidProducerIdMappingError(TransactionError, code="INVALID_PRODUCER_ID_MAPPING"):
    """The transactional id is not known, or has another producer id than the request: it may have expired."""


class InvalidTransactionTimeoutError(TransactionError, code="INVALID_TRANSACTION_TIMEOUT"):
    """The timeout of transactions is not positive, or above ``limit``, which is ``transaction.max.timeout.ms``."""

    limit: int = -1


class ConcurrentTransactionsError(TransactionError, code="CONCURRENT_TRANSACTIONS", retriable=True):
    """The producer's last transaction is being ended: try again."""


class TransactionCoordinatorFencedError(TransactionError, code="TRANSACTION_COORDINATOR_FENCED"):
    """A marker of ``coordinator_epoch`` came after one of ``current_epoch``: a newer coordinator has taken over."""

    producer_id: int = -1
    coordinator_epoch: int = -1
    current_epoch: int = -1


class UnknownTransactionalIdError(TransactionError, code="TRANSACTIONAL_ID_NOT_FOUND"):
    """No producer has, or had lately, this transactional id."""


class TransactionAbortableError(TransactionError, code="TRANSACTION_ABORTABLE"):
    """The transaction cannot be committed any more: abort it, and do its work again."""


# --- Storage ----------------------------------------------------------------------------------------------------------


class StorageError(SeglogError, code="KAFKA_STORAGE_ERROR"):
    """A disk or file error on the broker."""


class DiskFullError(StorageError, code="DISK_FULL", retriable=True):
    """The disk has less than ``hard`` bytes ``free``, or none: nothing is written until ``soft`` bytes are free.

    Reading, deletion and retention continue, so a retry later can help.
    """

    free: int = -1
    hard: int = -1
    soft: int = -1


class PartitionRecoveringError(
    StorageError, code="PARTITION_RECOVERING", kafka_name="LEADER_NOT_AVAILABLE", retriable=True
):
    """The partition is being recovered after an unclean shutdown; retry until it is served again.

    ``read_bytes`` of ``bytes`` have been read so far.
    """

    topic: str = ""
    partition: int = -1
    read_bytes: int = -1
    bytes: int = -1


class SegmentAwaitedError(PartitionRecoveringError, code="SEGMENT_AWAITED"):
    """The segment that begins at offset ``segment`` is still fetched from a backup: retry until it is there.

    Its records are in the log: nothing before, in or behind it has moved. ``bytes`` is its size.
    """

    segment: int = -1


class OutOfResourcesError(StorageError, code="OUT_OF_RESOURCES", retriable=True):
    """The broker is out of file descriptors or memory; a retry later can help."""


class CorruptRecordError(StorageError, code="CORRUPT_RECORD", kafka_name="CORRUPT_MESSAGE"):
    """Stored or received bytes violate their format.

    ``path`` and ``position`` (bytes) say where. [``start_offset``, ``next_offset``) is the unreadable range, as far as
    it is known (-1 unknown); reading may continue at ``next_offset``.
    """

    topic: str = ""
    partition: int = -1
    path: str = ""
    position: int = -1
    start_offset: int = -1
    next_offset: int = -1


class DecompressionError(CorruptRecordError):
    """A compressed block is not a valid stream of its codec."""


class DecompressedTooLargeError(CorruptRecordError, code="DECOMPRESSED_TOO_LARGE"):
    """A compressed block decompresses to more than ``decompressed_batch_bytes_max`` bytes."""

    limit: int = -1


class PartitionReadOnlyError(StorageError, code="PARTITION_READ_ONLY"):
    """An earlier write or fsync failed; the partition takes no appends until an operator has intervened."""

    topic: str = ""
    partition: int = -1
    reason: str = ""


class PartitionOfflineError(StorageError, code="PARTITION_OFFLINE"):
    """The partition's directory could not be opened; other partitions are not affected."""

    topic: str = ""
    partition: int = -1
    reason: str = ""


class LogDirectoryError(StorageError, code="LOG_DIRECTORY"):
    """The log directory cannot be used: it is locked, not seglog's, of a newer format, or not writable."""

    path: str = ""
    holder: str = ""


class UnknownServerError(StorageError, code="UNKNOWN_SERVER_ERROR"):
    """An internal error of the broker; its log has the traceback."""


class UnknownCodeError(SeglogError):
    """An error with a code unknown to this version; ``retriable`` is as the broker sent it."""

    wire_code: str = ""


# --- Client (never on the wire) ---------------------------------------------------------------------------------------


class ClientError(SeglogError, code="CLIENT"):
    """Raised by the client about its own connection and calls."""


class NotReachableError(ClientError):
    """No broker answered at ``server`` within the time given."""

    server: str = ""


class InconsistentClusterIdError(ClientError):
    """The broker at ``server`` is another one than before, or its log directory was replaced.

    Offsets and sequences are not valid there: producers and consumers fail; create new ones.
    """

    server: str = ""
    cluster_id: str = ""
    expected: str = ""


class ConnectionLostError(ClientError, retriable=True):
    """The connection broke while a call was waiting; the request may or may not have been executed."""

    server: str = ""


class TlsError(ClientError):
    """TLS with ``server`` could not be begun: its certificate is not trusted, or one side speaks no TLS."""

    server: str = ""


class RegistryError(ClientError):
    """A registry of schemas refuses an answer, or has no such schema."""


class RegistryAwayError(RegistryError, retriable=True):
    """A registry of schemas does not answer, or cannot at the moment."""


class UserExistsError(ClientError):
    """There is an account ``user`` already; give it another password instead."""

    user: str = ""


class ClientClosedError(ClientError):
    """The client, producer or consumer was closed by its owner."""


class ClientTimeoutError(ClientError, TimeoutError):
    """No answer within the time given; the connection stays usable."""


class DeliveryFailed(ClientError):  # noqa: N818 - the name programs write
    """Records were not acknowledged, ``records`` in all.

    ``failures`` lists (topic, partition, record count, cause) of their batches; of very many only the newest.
    """

    failures: list[tuple[str, int, int, Exception]]
    records: int = 0


class JobLost(ClientError):  # noqa: N818 - as DeliveryFailed
    """A word about a job of a queue does not count, or may not: the job may run again, here or elsewhere."""

    topic: str = ""
    partition: int = -1
    offset: int = -1


class TransactionFailed(ClientError):  # noqa: N818 - as DeliveryFailed
    """A transaction of the producer with ``transactional_id`` did not end as it was to."""

    transactional_id: str = ""


class TransactionAborted(TransactionFailed):
    """Nothing of the transaction counts: do its work again, in a new one."""


class TransactionUnanswered(TransactionFailed, retriable=True):
    """The broker did not answer whether the transaction has ended: ask again for the same end."""


class TransactionFenced(TransactionFailed):
    """Another producer has the transactional id, or the transaction took too long: this producer is over."""


# --- The table --------------------------------------------------------------------------------------------------------

_NEVER_SENT: Final = (SeglogError, ProtocolError, RequestError, LogDirectoryError, ClientError)

WIRE_ERRORS: Final[tuple[type[SeglogError], ...]] = (
    RemoteProtocolError,
    InvalidRequestError,
    *(
        kind
        for kind in [*globals().values()]
        if isinstance(kind, type) and issubclass(kind, SeglogError) and "code" in vars(kind) and kind not in _NEVER_SENT
    ),
)
"""Every error a broker may answer with: those with a code of their own. One shared by two decodes to the last."""

BY_CODE: Final[Mapping[str, type[SeglogError]]] = {error.code: error for error in WIRE_ERRORS}

_RESERVED: Final = frozenset({"code", "message", "retriable"})


ErrorT = TypeVar("ErrorT", bound=SeglogError)


def without_frames(error: ErrorT) -> ErrorT:
    """The same error without traceback, cause and context, for one that is kept or answered.

    A traceback holds the frames that made what holds the error: a cycle that only the garbage collector can free. For
    the ten thousand results of one request that is some hundred thousand objects; and a broker, whose collector leaves
    out what has survived two collections, may never find them.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def error_to_wire(error: SeglogError) -> dict[str, Fact]:
    """The error as a reply carries it: ``{"code", "message", "retriable", ...facts}``."""
    wire = {name: value for name, value in error.facts.items() if name not in _RESERVED}
    return wire | {"code": error.code, "message": error.message, "retriable": error.retriable}


def error_from_wire(wire: Mapping[str, Fact]) -> SeglogError:
    """The exception for a reply's error map; returned, not raised.

    An unknown code, from a newer broker, becomes UnknownCodeError with the ``retriable`` that was sent; a map without a
    code becomes RemoteProtocolError. A declared fact whose type differs from its default's is dropped, because callers
    rely on the type of the attribute.
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
            if not _is_like(facts[name], getattr(known, name)):
                del facts[name]
        error = known(message, **facts)
    error.retriable = wire.get("retriable") is True
    return error


def _is_like(fact: Any, default: Fact) -> bool:
    """Whether a fact has the type of its default; lists are of names, of numbers where the default is a range."""
    if type(default) is range:
        return type(fact) is list and all(type(item) is int for item in fact)
    return type(fact) is type(default) and (type(fact) is not list or all(type(item) is str for item in fact))
