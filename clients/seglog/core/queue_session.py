"""A member of a share group without socket, thread or clock: what it asks the broker, and which jobs it holds.

Two lanes of requests run at once: ``fetching`` acquires jobs and carries acknowledgements, ``tending`` has heartbeats,
locks that are renewed, and acknowledgements for which no fetch comes soon. Each is a generator of steps that a face
runs: it asks, or rests until ``changes`` has. Meanwhile the program takes jobs and says what became of them. A face of
threads has a lock, which is held while any of this runs, but not during a step.

A job belongs to the share session that it was fetched in. When that is lost, with the connection or the broker, the
broker gives its jobs to others, and nothing said of them counts any more.
"""

import base64
import logging
import math
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from seglog.core.consumer_options import check_patience, check_text
from seglog.core.conversations import Ask, Conversation
from seglog.core.errors import copied, count_of
from seglog.core.kafka_requests import ask_kafka, check_kafka, kafka_error, set_group_config
from seglog.core.queue_jobs import RELEASE, RENEW, Acknowledgement, Acknowledgements, Job, Place, batches_of, unpack
from seglog.core.retries import Retries, backoff_seconds
from seglog.core.topics import page
from seglog_protocol import errors
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.kafka import messages
from seglog_protocol.messages import TopicDescription, TopicsRequest

SHARE_VERSION: Final = 2
HEARTBEAT_VERSION: Final = 1
LEAVE_EPOCH: Final = -1
"""The epoch of a member that leaves, and of the last request of a share session."""

FETCH_BYTES: Final = 1024 * 1024
WAIT_MS: Final = 1_000
"""A fetch waits for jobs so long: longer, a loop that has ended meanwhile would get jobs that nobody wants."""
LINGER_SECONDS: Final = 0.01
"""Acknowledgements wait so long for a fetch that can carry them."""
AHEAD_SECONDS: Final = 1.0
"""Jobs are fetched ahead for so much work: while they wait here, no other member can do them."""
CLOSE_SECONDS: Final = 5.0
"""How long each request of a queue that is being closed may take."""

_log = logging.getLogger(__name__)


class Rest(NamedTuple):
    """A wait for so many seconds, or until something has changed."""

    seconds: float


Steps = Generator[Ask | Rest, Any, None]


class QueueOptions(NamedTuple):
    """The options of ``Client.queue``."""

    topics: tuple[str, ...]
    group: str
    client_id: str
    prefetch: int
    reconnect_timeout: float
    start: str | None = None

    def begin(self) -> Conversation[dict[bytes, str]]:
        """The topics by their ids. Raises UnknownTopicError for one that is not there, ValueError for a bad option."""
        check_text("group", self.group)
        for topic in self.topics or ("",):
            check_text("topics", topic)
        if self.prefetch < 0:
            raise ValueError(f"prefetch is a number of jobs, 0 or more, not {self.prefetch!r}")
        check_patience("reconnect_timeout", self.reconnect_timeout)
        reply, found = yield from page(TopicsRequest(names=list(self.topics)))
        for error in reply.unknown:
            raise error
        if self.start is not None:
            yield from set_group_config(self.group, {"share.auto.offset.reset": self.start}, self.client_id)
        return _by_id(found)


@dataclass(eq=False)
class ShareSession:
    """A share session: ``epoch`` is that of its next request, ``places`` what it fetches from."""

    epoch: int = 0
    places: frozenset[Place] = frozenset()

    def next_epoch(self) -> int:
        """The epoch of a request that is made now."""
        epoch, self.epoch = self.epoch, self.epoch % (2**31 - 1) + 1
        return epoch


class QueueSession:
    """The membership, its share session, and its jobs, which are made for ``queue``. ``clock`` gives seconds."""

    def __init__(self, queue: Any, options: QueueOptions, topics: dict[bytes, str], clock: Callable[[], float]) -> None:
        self.changes = 0
        """Counts what may end a wait of the program, or a rest."""
        self.takers = 0
        """How many wait for a job."""
        self.is_stopping = False
        self._is_left = False  # by a loop: what comes now, nobody wants
        self._queue = queue
        self._options = options
        self._clock = clock
        self._topics = topics
        self._failure: errors.SeglogError | None = None
        self._member = str(uuid.uuid4())
        self._epoch = 0
        self._heartbeat_at = clock()
        self._beats = 0  # since one brought what was wanted
        self._assigned: frozenset[Place] = frozenset()
        self._session: ShareSession | None = None
        self._is_fetching = False
        self._ahead: deque[Job] = deque()
        self._out: dict[Job, None] = {}  # what the program has, and has said nothing of
        self._seconds_a_job: float | None = None
        self._acks: Acknowledgements = {}
        self._acks_at = math.inf  # when they are sent, if no fetch comes before
        self._refused: deque[tuple[Place, list[Acknowledgement]]] = deque()  # that are sent again, some at a time
        self._untold: dict[Job, None] = {}  # of which something was said that the broker has not answered
        self._lost: errors.JobLost | None = None
        self._lock_seconds = 30.0
        self._look_at = 0.0
        self._has_warned = False  # that a lock is not renewed

    # --- The program's side -------------------------------------------------------------------------------------------

    def take(self) -> Job | None:
        """The next job; None if there is none now. Raises what ended the queue."""
        if self._failure is not None:
            raise copied(self._failure) from self._failure
        if self.is_stopping or not self._ahead:
            return None
        job = self._ahead.popleft()
        job.taken_at, self._is_left = self._clock(), False
        self._out[job] = None
        self.changes += self._count_wanted() > 0
        return job

    def wait(self, count: int) -> None:
        """So many more, or with -1 one less, wait for a job."""
        self.takers += count
        self._is_left = self._is_left and count < 0
        self.changes += 1

    def pass_over(self, job: Job) -> None:
        """A loop goes on behind a job: it is released if no block was entered with it, and nothing said of it."""
        if job.word is None and not job.is_entered:
            self.settle(job, RELEASE)

    def settle(self, job: Job, word: int) -> None:
        """Say what became of a job. Raises ClientError if something else was said before."""
        if job.word is not None:
            if job.word != word:
                raise errors.ClientError("a job is accepted, released or rejected once: something else was said before")
            return
        job.word = word
        del self._out[job]
        seconds = self._clock() - job.taken_at
        self._seconds_a_job = seconds if self._seconds_a_job is None else (seconds + self._seconds_a_job) / 2
        if job.lost is None:
            self._untold[job] = None
            self._say(job.place, Acknowledgement(job.offset, job.offset, word, job))
        else:
            self._note_lost([job])

    def hurry(self) -> list[Job]:
        """Have acknowledgements sent now; the jobs whose acknowledgements the broker has not answered."""
        self._acks_at = self._clock() if self._acks else math.inf
        self.changes += 1
        return list(self._untold)

    def raise_lost(self) -> None:
        """Raise the first JobLost of what was said since the last call."""
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def put_back(self) -> None:
        """Release what was fetched and not handed out, unless somebody waits for a job before a fetch has ended."""
        self._is_left = True
        self.changes += 1
        while self._ahead and not self._is_fetching:  # else that would get them
            self._release_first()

    def _release_first(self) -> None:
        """Release the job that was fetched longest ago."""
        job = self._ahead.popleft()
        self._say(job.place, Acknowledgement(job.offset, job.offset, RELEASE, job))

    def _say(self, place: Place, ack: Acknowledgement) -> None:
        """Have an acknowledgement sent soon."""
        if not self._acks:
            self._acks_at = self._clock() + LINGER_SECONDS
            self.changes += 1
        self._acks.setdefault(place, []).append(ack)

    # --- Fetching -----------------------------------------------------------------------------------------------------

    def fetching(self) -> Steps:
        """The steps, without an end but by a failure, that acquire jobs."""
        retries = Retries(self._options.reconnect_timeout)
        while self._failure is None:
            count = self._count_wanted()
            if not count:
                yield Rest(1.0)
                continue
            session = self._session = self._session or ShareSession()
            acks = self._take_acks() if session.epoch else {}
            request = self._fetch_request(session, acks, count)
            self._is_fetching = True
            problem: errors.SeglogError | None = None
            try:
                response = yield from self._ask(request, SHARE_VERSION)
                self._is_fetching = False
                problem = self._take_response(response, session, acks)
            except errors.SeglogError as error:
                self._is_fetching = False
                self._lose(session, acks, error)
                problem = error
            try:
                if problem is not None:
                    yield Rest(retries.failed(problem, self._clock())[0])
                else:
                    retries.worked()
            except errors.SeglogError as final:
                self.fail(final)

    def _count_wanted(self) -> int:
        """How many jobs the next fetch is to acquire; 0 for no fetch."""
        workers = self.takers + len(self._out)
        if self._is_fetching or self.is_stopping or not self._assigned or not workers:
            return 0
        seconds = self._seconds_a_job
        ahead = 0 if seconds is None else min(self._options.prefetch, int(workers * AHEAD_SECONDS / max(seconds, 1e-6)))
        return max(0, self.takers + ahead - len(self._ahead)) if len(self._ahead) <= ahead // 2 else 0

    def _fetch_request(self, session: ShareSession, acks: Acknowledgements, count: int) -> messages.ShareFetchRequest:
        cls = messages.ShareFetchRequest
        added, forgotten = self._assigned - session.places, session.places - self._assigned
        session.places = self._assigned
        named = dict.fromkeys(added, ()) | acks
        return cls(
            group_id=self._options.group,
            member_id=self._member,
            share_session_epoch=session.next_epoch(),
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=count,
            batch_size=count,
            share_acquire_mode=1,
            topics=_topics(named, cls.FetchTopic, cls.FetchPartition, cls.AcknowledgementBatch),
            forgotten_topics_data=[
                cls.ForgottenTopic(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in _by_topic(forgotten).items()
            ],
        )

    def _take_response(
        self, response: messages.ShareFetchResponse, session: ShareSession, acks: Acknowledgements
    ) -> errors.SeglogError | None:
        """Keep the jobs of a response; an error is why there are none."""
        problem: errors.SeglogError | None = None
        now = self._clock()
        self._lock_seconds = response.acquisition_lock_timeout_ms / 1000
        for place, data in _results(response):
            self._told({place: acks.pop(place, [])}, data.acknowledge_error_code, data.acknowledge_error_message)
            topic = self._topics.get(place[0], "")
            problem = problem or kafka_error(data.error_code, data.error_message, "there are no jobs", topic=topic)
            if session is self._session:
                records = memoryview(data.records or b"")
                found, others = unpack(topic, place[1], records, data.acquired_records, DECOMPRESSED_BATCH_BYTES_MAX)
                self._lose_old(place, {record.offset for record, _ in found})
                self._ahead += [Job.of(record, attempt, place, self._queue, now) for record, attempt in found]
                for ack in others:
                    self._say(place, ack)
        self._told(acks)
        if self._is_left or self.is_stopping:
            self.put_back()
            return None
        return None if self._ahead else problem

    def _lose_old(self, place: Place, offsets: set[int]) -> None:
        """Jobs whose records come once more have lost their locks, as when the process was suspended."""
        old = [job for job in (*self._ahead, *self._out, *self._untold) if job.place == place and job.offset in offsets]
        if old:
            for job in old:
                job.lose("its lock ran out")
            self._ahead = deque(job for job in self._ahead if job.lost is None)
            acks = self._acks.pop(place, [])
            self._told({place: [ack for ack in acks if ack.job in old]}, why="its lock ran out")
            for ack in [ack for ack in acks if ack.job not in old]:
                self._say(place, ack)

    # --- Tending ------------------------------------------------------------------------------------------------------

    def tending(self) -> Steps:
        """The steps, without an end but by a failure, that keep the membership and the locks."""
        while self._failure is None:
            now = self._clock()
            if now >= self._heartbeat_at:
                yield from self._beat(now)
            elif self._refused:
                place, some = self._refused.popleft()
                yield from self._acknowledge({place: some}, is_renewal=some[0].word == RENEW)
            elif now >= self._acks_at:
                yield from self._acknowledge(self._take_acks())
            elif now >= self._look_at:
                if locks := self._look_at_locks(now):
                    yield from self._acknowledge(locks, is_renewal=True)
            else:
                yield Rest(min(self._heartbeat_at, self._acks_at, self._look_at) - now)

    def _beat(self, now: float) -> Steps:
        topics = list(self._options.topics) if self._epoch == 0 else None
        self._beats += 1
        try:
            response = yield from self._ask(self._heartbeat(self._epoch, topics), HEARTBEAT_VERSION)
            if response.assignment is not None:
                yield from self._assign(response.assignment.topic_partitions)
        except (errors.FencedMemberEpochError, errors.UnknownMemberError):
            self._epoch, self._assigned = 0, frozenset()  # if its session is over, too, the next fetch says so
        except errors.SeglogError as error:
            if isinstance(error, errors.UnknownGroupError):
                told = f"{error.message.rstrip('.')}: a queue has a group of its own, so choose another name"
                self.fail(errors.UnknownGroupError(told, group=self._options.group))
            elif not (error.retriable or isinstance(error, errors.ClientTimeoutError)):
                self.fail(error)
            elif isinstance(error, errors.ConnectionLostError):
                self._lose(self._session, {}, error)
            self._heartbeat_at = now + backoff_seconds(self._beats)
        else:
            self._epoch = response.member_epoch
            seconds = response.heartbeat_interval_ms / 1000
            if self._assigned:
                self._beats = 0
            else:  # the group is about to assign some
                seconds = min(seconds, backoff_seconds(self._beats))
            self._heartbeat_at = now + seconds

    def _heartbeat(self, epoch: int, topics: list[str] | None = None) -> messages.ShareGroupHeartbeatRequest:
        group, member = self._options.group, self._member
        return messages.ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics
        )

    def _assign(self, topics: Iterable[Any]) -> Steps:
        self._assigned = frozenset((bytes(topic.topic_id), number) for topic in topics for number in topic.partitions)
        if {topic_id for topic_id, _ in self._assigned} - self._topics.keys():  # one was made again
            self._topics |= _by_id((yield from page(TopicsRequest(names=list(self._options.topics))))[1])
        self.changes += 1

    def _look_at_locks(self, now: float) -> Acknowledgements:
        """The locks to renew, of jobs that the program has. Jobs that wait here for so long are for others."""
        self._look_at = now + min(1.0, self._lock_seconds / 10)
        due = now - self._lock_seconds / 2
        while self._ahead and self._ahead[0].locked_at <= due:
            self._release_first()
            self._seconds_a_job = self._lock_seconds  # at least so long: no more are fetched ahead
        locks: Acknowledgements = {}
        for job in self._out:
            if job.locked_at <= due and job.lost is None:
                locks.setdefault(job.place, []).append(Acknowledgement(job.offset, job.offset, RENEW, job))
        return locks

    def _acknowledge(self, acks: Acknowledgements, *, is_renewal: bool = False, is_last: bool = False) -> Steps:
        session, cls = self._session, messages.ShareAcknowledgeRequest
        if session is None or not session.epoch:
            self._told(acks)
            return
        request = cls(
            group_id=self._options.group,
            member_id=self._member,
            share_session_epoch=LEAVE_EPOCH if is_last else session.next_epoch(),
            is_renew_ack=is_renewal,
            topics=_topics(acks, cls.AcknowledgeTopic, cls.AcknowledgePartition, cls.AcknowledgementBatch),
        )
        try:
            response = yield from self._ask(request, SHARE_VERSION)
        except errors.SeglogError as error:
            self._lose(session, acks, error)
            return
        for place, data in _results(response):
            self._told({place: acks.pop(place, [])}, data.error_code, data.error_message)
        self._told(acks)

    # --- Acknowledgements ---------------------------------------------------------------------------------------------

    def _take_acks(self) -> Acknowledgements:
        acks, self._acks, self._acks_at = self._acks, {}, math.inf
        return acks

    def _told(self, acks: Acknowledgements, code: int = -1, why: str | None = None) -> None:
        """The broker has answered to these with this code; by default, it has not.

        Those of a partition that it refuses are sent again, in halves: it takes all of them or none.
        """
        self.changes += 1
        why = why or "the broker did not take what was said of it"
        lost, now = [], self._clock()
        for place, some in acks.items():
            if code == errors.InvalidRecordStateError.kafka_code and len(some) > 1:
                middle = len(some) // 2
                self._refused += [(place, some[:middle]), (place, some[middle:])]
                continue
            for _, _, word, job in some:
                if job is None:
                    continue
                if word == RENEW:
                    job.locked_at = math.inf if code else now
                    if code:
                        self._note_not_renewed(why)
                    continue
                if code:
                    job.lose(why)
                job.is_told = True
                if job in self._untold:
                    del self._untold[job]
                    lost += [job] if code else []
        self._note_lost(lost)

    def _note_not_renewed(self, why: str) -> None:
        """Warn, once, that the broker has refused to renew a lock: of a group that may not, or that has run out."""
        if not self._has_warned:
            self._has_warned = True
            told = "%s: a lock is not renewed, so its job runs again if it takes longer than %g s: %s"
            _log.warning(told, self._options.group, self._lock_seconds, why)

    def _note_lost(self, jobs: list[Job]) -> None:
        """Tell of jobs of which something was said that does not count; to have released one is no loss."""
        lost = [job.lost for job in jobs if job.word != RELEASE and job.lost is not None]
        if lost:
            more = f"; so may {count_of(len(lost) - 1, 'other job')}" if len(lost) > 1 else ""
            _log.warning("%s: %s%s", self._options.group, lost[0].message, more)
            self._lost = self._lost or lost[0]

    def _lose(self, session: ShareSession | None, acks: Acknowledgements, error: errors.SeglogError) -> None:
        """A session is lost, or has to be taken for lost, and with it the answer to these acknowledgements."""
        why = f"its lock was lost with the session ({error.message})"
        if session is not None and session is self._session:
            self._session = None
            self._ahead.clear()
            for job in self._out:
                job.lose(why)
            self._told(self._take_acks(), why=why)
            while self._refused:
                self._told(dict([self._refused.popleft()]), why=why)
        self._told(acks, why=why)

    def fail(self, error: errors.SeglogError) -> None:
        """There will be no more jobs."""
        self._failure = self._failure or error
        self._lose(self._session, {}, error)
        self._told({(b"", 0): [Acknowledgement(job.offset, job.offset, RELEASE, job) for job in self._untold]})

    def _ask(self, request: Any, version: int) -> Conversation[Any]:
        """The response to a request. Raises the error of the whole."""
        response = yield from ask_kafka(request, version, self._options.client_id)
        group = self._options.group
        check_kafka(response.error_code, response.error_message, f"queue {group}", group=group)
        return response

    # --- Ending -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Hand out no more jobs."""
        self.is_stopping = True
        self.put_back()

    def closing(self) -> Steps:
        """Release what is held, say the last words, leave the group."""
        self.stop()
        for job in list(self._out):
            self.settle(job, RELEASE)
        yield from self._acknowledge(self._take_acks(), is_last=True)
        self._lose(self._session, {}, errors.ClientClosedError("the queue was closed"))
        until = self._clock() + CLOSE_SECONDS
        while self._untold and self._clock() < until:  # a fetch carries them, which the last request has answered
            yield Rest(until - self._clock())
        if self._epoch > 0:
            try:
                yield from self._ask(self._heartbeat(LEAVE_EPOCH), HEARTBEAT_VERSION)
            except errors.SeglogError as error:
                _log.debug("%s: the broker was not told that a member leaves: %s", self._options.group, error.message)


def _by_id(topics: Iterable[TopicDescription]) -> dict[bytes, str]:
    return {base64.urlsafe_b64decode(topic.id + "=="): topic.name for topic in topics}


def _results(response: Any) -> Iterator[tuple[Place, Any]]:
    for topic in response.responses:
        for data in topic.partitions:
            yield (bytes(topic.topic_id), data.partition_index), data


def _by_topic(places: Iterable[Place]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(places):
        found.setdefault(topic_id, []).append(number)
    return found


def _topics(named: Any, topic: type[Any], partition: type[Any], batch: type[Any]) -> list[Any]:
    """The topics of a request, with the acknowledgements of each partition."""

    def one(place: Place) -> Any:
        return partition(partition_index=place[1], acknowledgement_batches=batches_of(named[place], batch))

    return [
        topic(topic_id=topic_id, partitions=[one((topic_id, number)) for number in numbers])
        for topic_id, numbers in _by_topic(named).items()
    ]
