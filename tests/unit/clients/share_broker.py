"""A model of a broker with one share group, and what runs the steps of its members, in virtual time.

Records are available, acquired or done. A fetch that finds none waits until there are some, or for its time. The model
holds members to the rules: epochs follow each other, a record is acknowledged by who has it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from seglog.core.connection import Reply
from seglog.core.conversations import Ask
from seglog.core.queue_jobs import ACCEPT, RELEASE, RENEW, Job
from seglog.core.queue_session import QueueOptions, QueueSession, Rest, Steps
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages, read_request, read_request_header, write_response
from seglog_protocol.kafka.error_codes import ErrorCode

TOPIC: Final = "jobs"
TOPIC_ID: Final = bytes(range(16))
LOCK_SECONDS: Final = 30.0
BEAT_SECONDS: Final = 5.0
ATTEMPTS_MAX: Final = 50

Heartbeat = messages.ShareGroupHeartbeatRequest
Fetch = messages.ShareFetchRequest
Acknowledge = messages.ShareAcknowledgeRequest

Offset = tuple[int, int]
"""Partition and offset."""
Waiting = Callable[[], Any]
"""Gives the response to a request, or the error in place of one; None while it waits."""


def encoded(*values: bytes, base: int, control: bool = False) -> bytes:
    """A batch as the log has it."""
    return encode_batch([(1, None, value, ()) for value in values], base_offset=base, control=control)


class Acquired(NamedTuple):
    """Who holds a record, and until when."""

    member: str
    until: float


class ShareBroker:
    """The broker; tests move ``now``."""

    def __init__(self, partitions: int = 1) -> None:
        self.now = 1000.0
        self.batches: dict[int, list[tuple[int, int, bytes]]] = {number: [] for number in range(partitions)}
        self.assigned = list(range(partitions))
        self.available: set[Offset] = set()
        self.acquired: dict[Offset, Acquired] = {}
        self.attempts: Counter[Offset] = Counter()
        self.done: dict[Offset, int] = {}  # what was said of it
        self.members: dict[str, int] = {}  # their epochs
        self.sessions: dict[str, tuple[int, frozenset[int]]] = {}  # next epoch, and partitions
        self.renews = True
        self.asked: list[Any] = []
        self.scripts: dict[type, list[Any]] = {}  # by class of request: responses, or errors, in the broker's place

    def append(self, *values: bytes, partition: int = 0, data: bytes | None = None, count: int = 0) -> None:
        """Append a batch of these values, or ``data`` as one of ``count`` offsets."""
        stored = self.batches[partition]
        base = stored[-1][0] + stored[-1][1] if stored else 0
        stored.append((base, count or len(values), data or encoded(*values, base=base)))
        self.available |= {(partition, base + number) for number in range(count or len(values))}

    def lose_sessions(self) -> None:
        """All connections break: what members hold is for others."""
        for member in list(self.sessions):
            self._end(member)

    def begin(self, request: Any) -> Waiting:
        """Take a request."""
        self.asked.append(request)
        if scripted := self.scripts.get(type(request)):
            found = scripted.pop(0)
            return lambda: found
        if isinstance(request, Heartbeat):
            return lambda: self._beat(request)
        cls = messages.ShareFetchResponse if isinstance(request, Fetch) else messages.ShareAcknowledgeResponse
        code = self._begin_session(request)
        if code != ErrorCode.NONE:
            return lambda: cls(error_code=code)
        told = self._acknowledge(request)
        if request.share_session_epoch == -1:
            self._end(request.member_id)
        if isinstance(request, Fetch):
            deadline = self.now + request.max_wait_ms / 1000
            return lambda: self._fetch(request, told, deadline)
        acknowledged = messages.ShareAcknowledgeResponse
        results = [acknowledged.PartitionData(partition_index=number, error_code=told[number]) for number in told]
        topic = acknowledged.ShareAcknowledgeTopicResponse(topic_id=TOPIC_ID, partitions=results)
        return lambda: acknowledged(acquisition_lock_timeout_ms=int(LOCK_SECONDS * 1000), responses=[topic])

    def _beat(self, request: Any) -> Any:
        cls = messages.ShareGroupHeartbeatResponse
        member, epoch = request.member_id, request.member_epoch
        if epoch == -1:
            self.members.pop(member, None)
            return cls(member_id=member, member_epoch=-1)
        if epoch and self.members.get(member) is None:
            return cls(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        assert (request.subscribed_topic_names == [TOPIC]) == (epoch == 0)
        is_changed = self.members.get(member) != len(self.assigned)
        self.members[member] = len(self.assigned)
        assigned = cls.TopicPartitions(topic_id=TOPIC_ID, partitions=self.assigned)
        return cls(
            member_epoch=self.members[member],
            heartbeat_interval_ms=int(BEAT_SECONDS * 1000),
            assignment=cls.Assignment(topic_partitions=[assigned]) if is_changed else None,
        )

    def _begin_session(self, request: Any) -> ErrorCode:
        member, epoch = request.member_id, request.share_session_epoch
        next_epoch, partitions = self.sessions.get(member, (0, frozenset()))
        if epoch == 0:
            assert isinstance(request, Fetch)
            assert not any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions)
            partitions = frozenset()
        elif member not in self.sessions:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        elif epoch not in (-1, next_epoch):
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        if isinstance(request, Fetch):
            partitions |= {part.partition_index for topic in request.topics for part in topic.partitions}
            partitions -= {number for topic in request.forgotten_topics_data for number in topic.partitions}
        self.sessions[member] = epoch + 1, partitions
        return ErrorCode.NONE

    def _acknowledge(self, request: Any) -> dict[int, ErrorCode]:
        """Acknowledge those of each partition, all or none."""
        told = {}
        for part in [part for topic in request.topics for part in topic.partitions if part.acknowledgement_batches]:
            words: dict[Offset, int] = {}
            last = -1
            for each in part.acknowledgement_batches:
                assert last < each.first_offset <= each.last_offset
                last, count = each.last_offset, each.last_offset - each.first_offset + 1
                types = each.acknowledge_types * (1 if len(each.acknowledge_types) == count else count)
                assert len(types) == count
                words |= {(part.partition_index, each.first_offset + at): word for at, word in enumerate(types)}
            assert request.is_renew_ack == (RENEW in words.values())
            is_mine = all(
                place in self.acquired and self.acquired[place].member == request.member_id for place in words
            )
            is_mine = is_mine and (self.renews or not request.is_renew_ack)
            told[part.partition_index] = ErrorCode.NONE if is_mine else ErrorCode.INVALID_RECORD_STATE
            for place, word in words.items() if is_mine else ():
                if word == RENEW:
                    self.acquired[place] = Acquired(request.member_id, self.now + LOCK_SECONDS)
                    continue
                del self.acquired[place]
                if word == RELEASE and self.attempts[place] < ATTEMPTS_MAX:
                    self.available.add(place)
                else:
                    assert self.done.setdefault(place, word) == word
        return told

    def _fetch(self, request: Any, told: dict[int, ErrorCode], deadline: float) -> Any:
        for place in [place for place, held in self.acquired.items() if held.until <= self.now]:
            del self.acquired[place]
            self.available.add(place)
        cls = messages.ShareFetchResponse
        _, partitions = self.sessions.get(request.member_id, (0, frozenset()))
        taken = sorted(place for place in self.available if place[0] in partitions)[: request.max_records]
        if not taken and partitions and self.now < deadline:
            return None
        self.available -= set(taken)
        self.attempts.update(taken)
        self.acquired |= dict.fromkeys(taken, Acquired(request.member_id, self.now + LOCK_SECONDS))
        results = []
        for number in sorted({number for number, _ in taken} | told.keys()):
            offsets = [offset for partition, offset in taken if partition == number]
            ranges = [
                cls.AcquiredRecords(first_offset=at, last_offset=at, delivery_count=self.attempts[number, at])
                for at in offsets
            ]
            records = b"".join(
                data for base, count, data in self.batches[number] if any(base <= at < base + count for at in offsets)
            )
            results.append(
                cls.PartitionData(
                    partition_index=number,
                    acknowledge_error_code=told.get(number, ErrorCode.NONE),
                    records=records,
                    acquired_records=ranges,
                )
            )
        topic = cls.ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=results)
        return cls(acquisition_lock_timeout_ms=int(LOCK_SECONDS * 1000), responses=[topic])

    def _end(self, member: str) -> None:
        del self.sessions[member]
        for place in [place for place, held in self.acquired.items() if held.member == member]:
            del self.acquired[place]
            self.available.add(place)


class Lane:
    """Runs the steps of a member as a face does."""

    def __init__(self, broker: ShareBroker, session: QueueSession, steps: Steps) -> None:
        self._broker = broker
        self._session = session
        self._steps = steps
        self._resting_until = 0.0
        self._seen = -1
        self._waiting: Waiting | None = None
        self._frame: tuple[int, int] = (0, 0)
        self.is_over = False
        self._go(None)

    def go_on(self) -> bool:
        """Do the next step, if nothing has to be waited for; whether one was done."""
        if self.is_over:
            return False
        if self._waiting is None:
            if self._broker.now < self._resting_until and self._seen == self._session.changes:
                return False
            self._go(None)
            return True
        found = self._waiting()
        if found is None:
            return False
        self._waiting = None
        if not isinstance(found, SeglogError):
            frame = b"".join(write_response(0, found, self._frame[1]))[4:]
            found = Reply(0, {"id": 0}, memoryview(frame))
        self._go(found)
        return True

    def break_off(self, error: SeglogError) -> None:
        """The connection is lost before the answer."""
        if self._waiting is not None:
            self._waiting = lambda: error

    def _go(self, answer: Reply | SeglogError | None) -> None:
        try:
            step = self._steps.throw(answer) if isinstance(answer, SeglogError) else self._steps.send(answer)
        except StopIteration:
            self.is_over = True
            return
        if isinstance(step, Rest):
            self._resting_until, self._seen = self._broker.now + step.seconds, self._session.changes
            return
        assert isinstance(step, Ask)
        payload = memoryview(b"".join(step.payload))
        header = read_request_header(payload)
        self._frame = header.api_key, header.version
        self._waiting = self._broker.begin(read_request(header, payload))


class Member:
    """A member: its session, and both of its lanes."""

    def __init__(self, broker: ShareBroker, *, prefetch: int = 500) -> None:
        options = QueueOptions((TOPIC,), "workers", "test", prefetch, 120.0)
        self._broker = broker
        self.session = QueueSession(self, options, {TOPIC_ID: TOPIC}, lambda: broker.now)
        self.lanes = [
            Lane(broker, self.session, self.session.tending()),
            Lane(broker, self.session, self.session.fetching()),
        ]

    def settle(self, job: Job, word: int) -> None:
        self.session.settle(job, word)

    def run(self, seconds: float = 0.0) -> None:
        """Let the lanes do what they can, while time passes."""
        end = self._broker.now + seconds
        while True:
            while any(lane.go_on() for lane in self.lanes):
                pass
            if self._broker.now >= end:
                return
            self._broker.now = min(end, self._broker.now + max(0.005, (end - self._broker.now) / 10))

    def take(self, seconds: float = 2.0) -> Job | None:
        """The next job, for which so long is waited."""
        end = self._broker.now + seconds
        if (job := self.session.take()) is not None:
            return job
        self.session.wait(1)
        try:
            while (job := self.session.take()) is None and self._broker.now < end:
                self.run(0.005)
        finally:
            self.session.wait(-1)
        return job

    def one(self) -> Job:
        """The next job, which there is."""
        job = self.take()
        assert job is not None
        return job

    def take_all(self) -> list[Job]:
        """Jobs until none comes."""
        return list(iter(self.take, None))

    def lose_connection(self, error: SeglogError) -> None:
        """The connection breaks."""
        for lane in self.lanes:
            lane.break_off(error)

    def close(self) -> None:
        """Leave."""
        self.lanes.append(Lane(self._broker, self.session, self.session.closing()))
        while not self.lanes[-1].is_over:
            self.run(0.005)


def accepted(broker: ShareBroker) -> list[Offset]:
    """The records that were accepted."""
    return sorted(place for place, word in broker.done.items() if word == ACCEPT)
