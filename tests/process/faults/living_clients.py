"""Producers and consumers that run through every kill of their broker, and a ledger of the broker's promises.

Every record has a name in a header: its sender, and its number for the partition. So the names show records that are
missing, duplicated or out of order.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Literal, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

import seglog
from seglog_protocol.errors import ConnectionLostError
from seglog_protocol.messages import Ack
from seglog_protocol.records import Headers
from tests.processes import PATIENCE_SECONDS

KEYS: Final = 40
LAST: Final = b"last"
"""The value of the record that tells readers to go home."""

_BATCH_BYTES: Final = 400
_AHEAD_MAX: Final = 40
"""Records of a sender that nobody has looked at: so a slow machine has no more of them to look at, and a dozen batches
are on their way or wait."""
Policy = Literal["keep", "delete", "compact", "compact,delete"]


class Entry(NamedTuple):
    """A record as it was sent; ``name`` is SENDER:NUMBER."""

    name: bytes
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, key: bytes | None, value: bytes | None, headers: Headers) -> Self:
        """The entry for a record that was read."""
        [(_, name)] = headers
        assert name is not None
        return cls(name, key, value)

    @property
    def sender(self) -> tuple[bytes, int]:
        """The sender, and its number of earlier records."""
        sender, _, number = self.name.rpartition(b":")
        return sender, int(number)


class Ledger:
    """The records sent to one partition, and which of them were acked, read, or found after a kill.

    A kill loses nothing that was written, so a record that was seen once stays, unless retention or compaction drops
    it.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.sent: dict[bytes, Entry] = {}
        self.promised: dict[int, Entry] = {}
        self.acked = 0
        self.acked_unplaced = 0
        """Acked without an offset: sent again to a broker that was past it."""
        self.superseded: set[int] = set()
        self.expired = 0
        self._offsets: dict[bytes, int] = {}
        self._unplaced: list[Entry] = []

    def note_ack(self, entry: Entry, offset: int) -> None:
        """Note an ack for a record at ``offset``, or -1."""
        self.acked += 1
        if offset < 0:
            self.acked_unplaced += 1
            self._unplaced.append(entry)
        else:
            self.note(offset, entry)

    def note(self, offset: int, entry: Entry) -> None:
        """Note that this record was acked or read at this offset."""
        assert self.sent.get(entry.name) == entry, "nothing is invented"
        assert self._offsets.setdefault(entry.name, offset) == offset, f"{entry} is twice in the log"
        if offset not in self.superseded:
            assert self.promised.setdefault(offset, entry) == entry, f"offset {offset} was given to two records"

    def check(self, found: Mapping[int, Entry], start: int, end: int) -> None:
        """Compare the whole log, which ends at ``end``, with the promises."""
        for offset, entry in found.items():
            self.note(offset, entry)
        self._check_order(found)
        if self.policy in ("keep", "delete"):
            assert start == 0 or self.policy == "delete", "nobody asked for that"
            assert sorted(found) == list(range(start, end)), "offsets are contiguous"
        for entry in self._unplaced:
            assert entry.name in self._offsets or self.policy != "keep", f"{entry} was acked and is nowhere"
        self._unplaced.clear()
        newest = {entry.key: offset for offset, entry in sorted(found.items())}
        last = {entry.key: entry for _, entry in sorted(self.promised.items())}
        for offset, entry in list(self.promised.items()):
            if offset in found:
                continue
            if offset < start:
                assert "delete" in self.policy, "nobody asked for that"
                self.expired += 1
            else:
                assert "compact" in self.policy, f"{entry} was promised at {offset} and is gone"
                # A later write of its key is there; or the last one was a tombstone, whose time was over.
                is_deleted = entry.key not in newest and last[entry.key].value is None
                assert is_deleted or newest.get(entry.key, -1) > offset, f"{offset}: {entry} has no successor"
                self.superseded.add(offset)
                if last[entry.key] is entry:
                    continue  # the tombstone itself, which still speaks for those before it
            del self.promised[offset]

    def counts(self) -> tuple[int, int, int, int]:
        """Records acked, superseded, expired, and acked without an offset."""
        return self.acked, len(self.superseded), self.expired, self.acked_unplaced

    def _check_order(self, found: Mapping[int, Entry]) -> None:
        """Assert that each sender's records are in the order sent, without a hole if only the oldest may be gone."""
        numbers: dict[bytes, list[int]] = {}
        for _, entry in sorted(found.items()):
            sender, number = entry.sender
            numbers.setdefault(sender, []).append(number)
        for sender, theirs in numbers.items():
            assert theirs == sorted(set(theirs)), f"{sender!r} is out of order"
            if self.policy in ("keep", "delete"):
                first = 0 if self.policy == "keep" else theirs[0]
                assert theirs == list(range(first, first + len(theirs))), f"of {sender!r} something is missing"


Ledgers = Mapping[tuple[str, int], Ledger]


class LivingThread(threading.Thread):
    """A thread whose failure is the test's: ``finish`` raises it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run ``live``, and keep its error."""
        try:
            self.live()
        except BaseException as error:  # noqa: BLE001 - raised where the test can see it
            self.failure = error

    def live(self) -> None:
        """The work of the thread, in a subclass."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self.failure is not None:
            raise self.failure

    def finish(self) -> None:
        """Wait for the end of the thread; raise its error."""
        self.join(PATIENCE_SECONDS)
        self.check()
        assert not self.is_alive(), f"{self} does not end"


class Sender(LivingThread):
    """A producer in a thread of its own, of any protocol."""

    def __init__(self, name: str, topic: str, ledgers: Ledgers) -> None:
        super().__init__()
        self.name = name
        self._topic = topic
        self._ledgers = {partition: ledger for (of, partition), ledger in ledgers.items() if of == topic}
        self._is_over = threading.Event()
        self._dice = random.Random(name)
        self._counts = dict.fromkeys(self._ledgers, 0)

    def some(self) -> Iterator[tuple[int, Entry]]:
        """A few entries now and then, each with its partition, until it is to stop."""
        dice = self._dice
        while not self._is_over.wait(dice.uniform(0.01, 0.04)):
            for _ in range(min(dice.randrange(1, 9), _AHEAD_MAX - self.unacknowledged)):
                partition = dice.choice(list(self._ledgers))
                name = b"%s.%d:%d" % (self.name.encode(), partition, self._counts[partition])
                self._counts[partition] += 1
                is_tombstone = dice.random() < 0.05 and "compact" in self._ledgers[partition].policy
                value = None if is_tombstone else b"%0*x" % (dice.randrange(1, 60), dice.getrandbits(60))
                entry = Entry(name, b"key %d" % dice.randrange(KEYS), value)
                self._ledgers[partition].sent[name] = entry
                yield partition, entry

    def take_acks(self) -> None:
        """Add the acks since the last call to the ledgers. A failed record is an error."""
        raise NotImplementedError

    def stop(self) -> None:
        """Send nothing new; it ends when all it sent is acknowledged."""
        self._is_over.set()

    def abandon(self) -> None:
        """Close at once; does nothing after the end."""
        raise NotImplementedError

    @property
    def unacknowledged(self) -> int:
        """Records without an ack."""
        raise NotImplementedError


class Writer(Sender):
    """An idempotent producer that sends a few records at a time until it is told to stop, then flushes."""

    def __init__(self, name: str, address: str, topic: str, ledgers: Ledgers, ack: Ack) -> None:
        super().__init__(name, topic, ledgers)
        self._address = address
        self._ack: Ack = ack
        self._on_the_way: dict[int, deque[tuple[Entry, seglog.Delivery]]] = {p: deque() for p in self._ledgers}
        self._producer: seglog.Producer | None = None

    def live(self) -> None:
        """Send records; the producer waits, reconnects and retries by itself."""
        with (
            seglog.connect(self._address) as client,
            client.producer(self._topic, ack=self._ack, linger_ms=2, batch_bytes=_BATCH_BYTES) as producer,
        ):
            self._producer = producer
            for partition, entry in self.some():
                headers = {"name": entry.name}
                delivery = producer.send(entry.value, key=entry.key, partition=partition, headers=headers)
                self._on_the_way[partition].append((entry, delivery))

    def take_acks(self) -> None:
        """See Sender."""
        self.check()
        for partition, waiting in self._on_the_way.items():
            while waiting and waiting[0][1].done():
                entry, delivery = waiting.popleft()
                self._ledgers[partition].note_ack(entry, delivery.result().offset)

    def abandon(self) -> None:
        """See Sender."""
        self.stop()
        if self._producer is not None:
            self._producer.abort(timeout=0)

    @property
    def unacknowledged(self) -> int:
        """See Sender."""
        return sum(map(len, self._on_the_way.values()))


class KafkaWriter(Sender):
    """An idempotent producer of librdkafka, with five requests on their way, that does the same at ack disk."""

    def __init__(self, name: str, address: str, topic: str, ledgers: Ledgers) -> None:
        super().__init__(name, topic, ledgers)
        self._acked: deque[tuple[int, Entry, int]] = deque()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": _BATCH_BYTES,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "reconnect.backoff.max.ms": 500,
                "metadata.recovery.strategy": "none",  # else it forgets the only node when that is away
                "log_level": 0,
            }
        )

    def live(self) -> None:
        """Send records; librdkafka waits, reconnects and retries by itself."""
        for partition, entry in self.some():
            self._producer.produce(
                *(self._topic, entry.value, entry.key, partition),
                headers=[("name", entry.name)],
                on_delivery=partial(self._note, entry),
            )
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _note(self, entry: Entry, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        offset, partition = message.offset(), message.partition()
        assert partition is not None
        self._acked.append((partition, entry, -1 if offset is None else offset))

    def take_acks(self) -> None:
        """See Sender."""
        self.check()
        while self._acked:
            partition, entry, offset = self._acked.popleft()
            self._ledgers[partition].note_ack(entry, offset)

    def abandon(self) -> None:
        """See Sender."""
        self.stop()

    @property
    def unacknowledged(self) -> int:
        """See Sender."""
        return len(self._producer) + len(self._acked)


class Places:
    """The position of a reader: every offset is a record, or lies in a gap that the broker reported."""

    def __init__(self, policy: Policy) -> None:
        reasons = {"keep": (), "delete": ("expired",), "compact": ("compacted",)}
        self._reasons = reasons.get(policy, ("compacted", "expired"))
        self._next: dict[int, int] = {}

    def gap(self, gap: seglog.ConsumerGap) -> None:
        """Note a gap, which must begin at the reader's position."""
        assert gap.reason in self._reasons, gap
        assert self._next.get(gap.partition, gap.start) == gap.start, gap
        self._next[gap.partition] = gap.end

    def record(self, record: seglog.Record) -> None:
        """Note a record, which must be at the reader's position."""
        at = self._next.get(record.partition, record.offset)
        assert record.offset == at, f"{record} came where {at} was due"
        self._next[record.partition] = record.offset + 1


class Reader(LivingThread):
    """Consumers of one topic: one that follows, or (``again``) one after the other, each from the earliest to the end.

    ``seen`` is what they were given. It ends at the last record.
    """

    def __init__(
        self, address: str, topic: str, ledgers: Ledgers, *, durable_only: bool = False, again: bool = False
    ) -> None:
        super().__init__()
        self.name = f"reader of {topic}, {durable_only=}, {again=}"
        self.count = 0
        self._address = address
        self._topic = topic
        self._ledgers = {partition: ledger for (of, partition), ledger in ledgers.items() if of == topic}
        self._durable_only = durable_only
        self._again = again
        self._seen: deque[seglog.Record] = deque()
        self._ended: set[int] = set()

    def live(self) -> None:
        """Read records; the consumer waits and reconnects by itself."""
        with seglog.connect(self._address) as client:
            for records in self._passes(client):
                for record in records:
                    self.count += 1
                    self._seen.append(record)
                    if record.value == LAST:
                        self._ended.add(record.partition)
                        if self._ended == set(self._ledgers):
                            return

    def _passes(self, client: seglog.Client) -> Iterator[Iterator[seglog.Record]]:
        policy = self._ledgers[0].policy
        while True:
            places = Places(policy)
            with (
                suppress(ConnectionLostError, seglog.NotReachableError),  # while a new one was being made
                client.consumer(
                    self._topic,
                    start="earliest",
                    follow=not self._again,
                    durable_only=self._durable_only,
                    on_out_of_range="earliest",
                    on_gap=places.gap,
                ) as consumer,
            ):
                yield self._checked(consumer, places)
            time.sleep(0.5)

    @staticmethod
    def _checked(consumer: seglog.Consumer, places: Places) -> Iterator[seglog.Record]:
        for record in consumer:
            places.record(record)
            yield record

    def take_seen(self) -> None:
        """Add the records read since the last call to the ledger."""
        self.check()
        while self._seen:
            record = self._seen.popleft()
            entry = Entry.of(record.key, record.value, record.headers)
            self._ledgers[record.partition].note(record.offset, entry)


def send_last(address: str, ledgers: Ledgers) -> None:
    """Send the last record, at which readers end."""
    with seglog.connect(address) as client:
        for (topic, partition), ledger in ledgers.items():
            entry = Entry(b"last:0", LAST, LAST)
            ledger.sent[entry.name] = entry
            with client.producer(topic) as producer:
                producer.send(entry.value, key=entry.key, partition=partition, headers={"name": entry.name})
