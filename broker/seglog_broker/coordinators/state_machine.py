"""State machines, of which a coordinator has one for each key, and the records that they make.

They decide without I/O, tasks and clocks. A request goes in with the moment. What comes out goes to an ``Outbox``:
records, which the runtime appends to the topic of the coordinator; effects, which it has carried out when those are
durable; and replies, which it sends then. So no client learns of what a power cut could take back, and nothing follows
from it. A start replays a partition of the topic in the order of its log.

Key and value of a record each begin with an int16: the type of the record, and the version of the value. A record
without a value is a tombstone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - an exception
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from seglog_protocol.kafka import Message, messages, read_message, write_message, write_message_in_pieces
from seglog_protocol.kafka.compiler import message_reader
from seglog_protocol.kafka.errors import WireError
from seglog_protocol.kafka.source import PIECE_BYTES
from seglog_protocol.record_batch import BatchHeader
from seglog_protocol.records import Record as LogRecord
from seglog_protocol.steps import Steps, steps_of
from seglog_protocol.transaction_files import decode_end_marker

Answer = Callable[[Any], None]
"""Takes the result of a request that may have to wait."""


class Now(NamedTuple):
    """A moment. ``monotonic_ms`` measures intervals; ``wall_ms``, since 1970, is what records hold."""

    monotonic_ms: int
    wall_ms: int


class Record(NamedTuple):
    """A record of a coordinator's topic: its key and value (None: a tombstone), in these versions.

    The version of a key is its type: 2 for the metadata of a classic group.
    """

    key: Message
    key_version: int
    value: Message | None
    value_version: int = 0
    least_size: int = 0
    """Bytes that the value has at least, as far as that is known before it is encoded."""


@dataclass(slots=True)
class Outbox:
    """Decisions of state machines that the runtime has not taken yet.

    ``records`` are written together, and behind them ``encoded``, key and value of those that a machine has encoded.
    When they are durable, ``effects`` are carried out, values that the coordinator knows, and ``replies`` are sent,
    each a result with where it goes.
    """

    records: list[Record] = field(default_factory=list)
    replies: list[tuple[Answer, Any]] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    encoded: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.records or self.encoded or self.replies or self.effects)

    def take(self) -> "Outbox":
        """All that is in it; it is empty then."""
        taken = Outbox(self.records, self.replies, self.effects, self.encoded)
        self.records, self.replies, self.effects, self.encoded = [], [], [], []
        return taken


@mypyc_attr(allow_interpreted_subclasses=True)
class StateMachine:
    """The state of one coordinator key: of one group, for example. Requests are methods of its subclasses.

    - State that records carry changes by ``replay`` alone, of a record that was just decided as of one from the log.
      State that no record carries, such as the time of a heartbeat, begins anew with ``restored``.
    - A reply is true when all records that were decided before it, or with it, are durable.
    - A request that may take long is a generator: it pauses where the state is consistent, and other requests are
      served there.
    """

    def __init__(self, key: str, outbox: Outbox) -> None:
        """Its records and replies go to ``outbox``, which all state machines of a runtime share."""
        self.key: Final = key
        self.outbox: Final = outbox

    @property
    def deadline_ms(self) -> int | None:
        """When ``advance`` has something to do, ms of the monotonic clock; None: only after another request."""
        return None

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        return 0

    @property
    def is_unused(self) -> bool:
        """True if nothing was ever decided about this key, so that it may be dropped without a record."""
        return False

    def replay(self, record: Record) -> Steps[None]:
        """Change the state as a record says."""
        raise NotImplementedError

    def restored(self, now: Now) -> None:
        """Go on after the last record from the log was replayed: all that is measured in time begins now."""

    def advance(self, now: Now) -> None:
        """Decide what is due. A request that comes before ``advance`` is in time, whatever the deadline was."""

    def write_failed(self, now: Now) -> None:
        """Decide what follows where records that were decided could not be written; requests in between got errors."""

    def delete(self) -> None:
        """Decide the tombstones of all its records. No request follows."""
        raise NotImplementedError


VERSION: Final = Layout(">h")


class ProducerIdAndEpoch(NamedTuple):
    """Who a producer is to the logs, in which records of its transaction have both."""

    producer_id: int
    epoch: int


class RecordKind(NamedTuple):
    """A type of records: the names of the structs of key and value, and the newest version of the value."""

    key: str
    value: str
    newest: int


class UnknownRecordError(Exception):
    """A record of a type, or in a version, that is not known here; or bytes that are no record of a coordinator."""


def encode_record(record: Record) -> Steps[tuple[bytes, bytes | None]]:
    """Key and value of a record."""
    key = encode_key(record)
    if record.value is None:
        return key, None
    value = yield from steps_of(write_message_in_pieces(record.value, record.value_version))
    return key, VERSION.pack(record.value_version) + value


def encode_key(record: Record) -> bytes:
    """The key of a record."""
    return VERSION.pack(record.key_version) + write_message(record.key, 0)


def decode_record(
    kinds: Mapping[int, RecordKind], key: bytes | None, value: bytes | None, known_keys: dict[bytes, Message]
) -> Steps[Record]:
    """A record of one of ``kinds`` from its bytes. Raises UnknownRecordError.

    ``known_keys`` has the keys that were read before, and gets this one: the same keys come again and again.
    """
    try:
        key = key or b""
        (kind,) = VERSION.unpack_from(key)
        if kind not in kinds:
            raise UnknownRecordError(f"records of type {kind} are not known here")
        names = kinds[kind]
        read_key = known_keys.get(key)
        if read_key is None:
            read_key = read_message(getattr(messages, names.key), 0, memoryview(key)[VERSION.size :])
            known_keys[key] = read_key
        if value is None:
            return Record(read_key, kind, None)
        (version,) = VERSION.unpack_from(value)
        if not 0 <= version <= names.newest:
            raise UnknownRecordError(f"version {version} of records of type {kind} is not known here")
        if len(value) <= PIECE_BYTES:
            cls = getattr(messages, names.value)
            return Record(read_key, kind, read_message(cls, version, memoryview(value)[VERSION.size :]), version)
        reading = message_reader(names.value, version, in_pieces=True)
        return Record(read_key, kind, (yield from steps_of(reading(memoryview(value), VERSION.size)))[0], version)
    except StructError:
        raise UnknownRecordError("it does not begin with a type and a version") from None
    except WireError as error:
        raise UnknownRecordError(str(error)) from error


@mypyc_attr(allow_interpreted_subclasses=True)
class Replay:
    """Replays the records of a partition in the order of its log; subclasses keep the resulting state.

    A record that is not known is counted and skipped: a newer Kafka may have written it.
    """

    def __init__(self, kinds: Mapping[int, RecordKind]) -> None:
        self.unknown: Counter[str] = Counter()
        """Records that were skipped, by what is wrong with them."""
        self._kinds = kinds
        self._keys: dict[bytes, Message] = {}

    def apply(self, record: Record) -> None:
        """Take in a record that counts."""
        raise NotImplementedError

    def hold(self, producer_id: int, record: Record) -> None:  # noqa: ARG002 - of those who know such records
        """Take in a record that counts if the transaction of a producer is committed."""
        raise UnknownRecordError(f"records of type {record.key_version} in a transaction are not known here")

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Steps[None]:  # noqa: ARG002 - as above
        """The transaction of a producer ends here."""
        yield from ()

    def read(self, header: BatchHeader, records: Iterable[LogRecord]) -> Steps[None]:
        """Take in records of one batch."""
        if header.is_control:
            for record in records:
                marker = decode_end_marker(record.key, record.value)
                if marker is not None:
                    yield from self.end_transaction(header.producer_id, is_commit=marker.type == "COMMIT")
            return
        for record in records:
            yield from self.take(record.key, record.value, header.producer_id if header.is_transactional else None)

    def take(self, key: bytes | None, value: bytes | None, producer_id: int | None = None) -> Steps[None]:
        """Take in a record, one of a producer's transaction where ``producer_id`` is given."""
        try:
            known = yield from decode_record(self._kinds, key, value, self._keys)
            if producer_id is not None:
                self.hold(producer_id, known)
            else:
                self.apply(known)
        except UnknownRecordError as error:
            self.unknown[str(error)] += 1
