"""Writes dead letters: what a share group gave up goes to the topic that the group has for it (KIP-1191).

A record that was rejected, or delivered too often, is ARCHIVING in its share partition until its dead letter is
durable, and ARCHIVED then. So none is lost, and one is written twice where the broker is killed in between.

One that cannot be written is tried again after RETRY_SECONDS, then after twice that, and so on; others do not wait for
it. When it is older than ``seglog.share.dead.letter.retry.ms`` its record is archived without it. A record that cannot
be copied, because it is gone, damaged or too large for the topic, has a dead letter of headers.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.share.partition import DeadLetter, SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.service.copies import Copy, read_copies
from seglog_broker.coordinators.share.settings import ShareSettings
from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.runtime.lasting import Lasting
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.os_errors import storage_error
from seglog_protocol import errors
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.dead_letters import DeadLetterOrigin
from seglog_protocol.messages import AppendPartition, AppendRequest, CreateTopicRequest

RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0
"""Both are Kafka's, which tries five times."""

LETTERS_A_ROUND: Final = 250
"""Dead letters of a share partition after which it is the turn of the others."""

BYTES_A_ROUND: Final = 1024 * 1024
"""Bytes of them, as above."""

LETTER_COST: Final = 20
"""Microseconds to make a dead letter."""

NO_COPY: Final[Copy] = (None, None)

RANGES_TOLD_MAX: Final = 100
"""Ranges of offsets in a line of the log."""

ENABLED: Final = {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}
"""The settings with which a topic for dead letters is made, Kafka's."""

OF_RECORDS: Final = errors.InvalidRecordError, errors.InvalidTimestampError, errors.MessageTooLargeError
"""Errors of single dead letters, for which others of their batch are refused."""

log = get_logger()


class Letters(NamedTuple):
    """The dead letters of consecutive offsets; ``since`` is the loop's time at which they were decided."""

    first: int
    last: int
    delivery_count: int
    cause: str
    since: float


@dataclass(slots=True, eq=False)
class _Work:
    """The letters of a share partition that are to be written; ``due`` is the loop's time."""

    key: PartitionKey
    machine: SharePartition
    left: list[Letters] = field(default_factory=list)
    due: float = 0.0
    retry_seconds: float = RETRY_SECONDS
    why_held_up: errors.SeglogError | None = None  # as of the last try
    is_one_by_one: bool = False
    """True after a letter was refused for itself: each has a batch of its own."""


@dataclass(slots=True, eq=False)
class _Try:
    """The outcome of a round for the letters of a share partition; ``error`` is why some are refused."""

    done: list[Letters] = field(default_factory=list)
    refused: list[Letters] = field(default_factory=list)
    left: list[Letters] = field(default_factory=list)
    error: errors.SeglogError | None = None


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch under construction."""

    builder: BatchBuilder = field(default_factory=BatchBuilder)
    letters: list[Letters] = field(default_factory=list)

    def note(self, letters: Letters, offset: int) -> None:
        """Note that the letter of an offset is in it."""
        if self.letters and self.letters[-1][1:] == (offset - 1, *letters[2:]):
            self.letters[-1] = self.letters[-1]._replace(last=offset)
        else:
            self.letters.append(letters._replace(first=offset, last=offset))


class HeldUp(NamedTuple):
    """Dead letters of a share partition that could not be written at the last try; ``seconds`` is the oldest's age."""

    key: PartitionKey
    first_offset: int
    records: int
    seconds: float
    reason: str


@dataclass(eq=False, repr=False)
class DeadLetters(Service):
    """The dead letters of all share groups that are to be written, and the task that does it."""

    _runtime: CoordinatorRuntime[SharePartition]
    _settings: Callable[[str], ShareSettings]  # of a group
    _append: Callable[..., PendingAppends]  # as AppendService does
    _create_topic: Callable[[CreateTopicRequest], Awaitable[object]]  # as TopicService does

    def __post_init__(self) -> None:
        self._works: dict[str, _Work] = {}  # by coordinator key
        self._wanted = trio.Event()
        self._problems = Lasting()
        self.written = 0
        """Dead letters that are durable, since the start."""
        self.given_up = 0
        """Records that were archived without one."""

    def add(self, effect: DeadLetter) -> None:
        """Write the dead letters of a range of records, which stay ARCHIVING until then."""
        key, first, last, delivery_count, cause = effect
        machine = self._runtime.machines.get(key.text)
        if machine is not None:
            work = self._works.get(key.text)
            if work is None or work.machine is not machine:
                work = self._works[key.text] = _Work(key, machine)
            work.left.append(Letters(first, last, delivery_count, cause, trio.current_time()))
            self._wanted.set()

    @property
    def waiting(self) -> int:
        """Dead letters that are still to be written."""
        return sum([_count(work.left) for work in self._works.values()])

    def held_up(self) -> Iterator[HeldUp]:
        """Those that could not be written at the last try, by share partition."""
        for work in self._works.values():
            if work.why_held_up is not None:
                first = min([letters.first for letters in work.left])
                age = trio.current_time() - min([letters.since for letters in work.left])
                yield HeldUp(work.key, first, _count(work.left), age, work.why_held_up.message)

    async def run(self) -> None:
        """Write dead letters, until cancelled; those that are left are written after the next start."""
        while True:
            while (due := min((work.due for work in self._works.values()), default=math.inf)) > trio.current_time():
                self._wanted = trio.Event()
                with trio.move_on_at(due):
                    await self._wanted.wait()
            try:
                await self._round(next(work for work in self._works.values() if work.due <= trio.current_time()))
            except Exception:  # a bug: the broker goes on without dead letters, and they are not lost
                log.exception("dead_letters_crashed")
                await trio.sleep(RETRY_SECONDS_MAX)

    async def _round(self, work: _Work) -> None:
        """Write some letters of a share partition, and archive their records when they are durable."""
        await self._scheduler.turn()
        work.left = _apart(work.left)
        taken, tried = work.left.copy(), _Try()
        try:
            topic = await self._destination(self._settings(work.key.group).dead_letter_topic)
            batches = await self._make(work, taken, tried, self._table.config_of(topic).max_message_bytes)
        except errors.SeglogError as error:
            tried.refused, tried.error = taken, errors.without_frames(error)
        except OSError as error:
            tried.refused, tried.error = taken, storage_error("the records could not be read", error)
        else:
            if batches:
                await self._write(topic.name, work.key.partition % topic.partitions, batches, tried)  # as Kafka chooses
        self._end(work, len(taken), tried)

    async def _make(self, work: _Work, taken: Sequence[Letters], tried: _Try, size_max: int) -> list[_Batch]:
        """Batches of letters, of so many as a round writes. Raises why none can be written."""
        group, _, partition = work.key
        topic = self._topic_of(work)
        if topic is None:
            raise errors.UnknownTopicError("the topic of the records was deleted")
        each = ((offset, letters) for letters in taken for offset in range(letters.first, letters.last + 1))
        wanted = dict(islice(each, LETTERS_A_ROUND))
        copies: dict[int, Copy | None] = {}
        end = max(wanted) + 1
        if self._settings(group).copies_dead_letters:
            log_of_records = self._table.readable(topic, partition).log
            copies, end = await read_copies(self._scheduler, self._offload, log_of_records, list(wanted), BYTES_A_ROUND)
        now_ms = self._clock.now_ms()
        turns = budget.Turns(self._scheduler.turn)
        made: list[_Batch] = []
        for offset, letters in wanted.items():
            if offset >= end:
                break
            await turns.spend(LETTER_COST)
            copy = copies.get(offset, NO_COPY)
            if copy is None:  # the marker of a transaction, which nobody was given
                tried.done.append(letters._replace(first=offset, last=offset))
                continue
            headers = DeadLetterOrigin(topic, partition, offset, group, letters.delivery_count, letters.cause).headers
            if (
                not made
                or work.is_one_by_one
                or not made[-1].builder.try_append(now_ms, *copy, headers, size_max=size_max)
            ):
                made.append(batch := _Batch())
                if batch.builder.append(now_ms, *copy, headers) > size_max:
                    batch.builder = BatchBuilder()  # without the copy, which is too large
                    batch.builder.append(now_ms, *NO_COPY, headers)
            made[-1].note(letters, offset)
        tried.left = [each if each.first >= end else each._replace(first=end) for each in taken if each.last >= end]
        return made

    def _topic_of(self, work: _Work) -> str | None:
        """The topic with the id of a share partition's: another one may have its name."""
        topic = self._directory.registry.topics.with_id(id_text(work.key.topic_id))
        return None if topic is None else topic.name

    async def _destination(self, name: str) -> Topic:
        """A topic for dead letters, which is made where that is allowed. Raises why they cannot go there."""
        config = self._config.current
        prefix = config.errors_deadletterqueue_topic_name_prefix
        if not name:
            raise errors.UnknownTopicError("the group has no topic for dead letters any more")
        if not name.startswith(prefix):
            raise errors.PolicyViolationError(
                f"topic {name} is not one for dead letters: their names begin with {prefix} "
                "(errors.deadletterqueue.topic.name.prefix)"
            )
        if self._table.find_topic(name) is None:
            if not config.errors_deadletterqueue_auto_create_topics_enable:
                raise errors.UnknownTopicError(
                    f"there is no topic {name}: create it with errors.deadletterqueue.group.enable=true, or set "
                    "errors.deadletterqueue.auto.create.topics.enable=true",
                    topic=name,
                )
            await self._create_topic(CreateTopicRequest(name, config=dict(ENABLED)))
        topic = self._table.topic(name)
        if not self._table.config_of(topic).errors_deadletterqueue_group_enable:
            raise errors.PolicyViolationError(
                f"topic {name} takes no dead letters: set its errors.deadletterqueue.group.enable=true"
            )
        return topic

    async def _write(self, topic: str, partition: int, batches: Sequence[_Batch], tried: _Try) -> None:
        """Append batches, and note which letters are durable, and why others were refused."""
        built = [batch.builder.build() for batch in batches]
        parts = [AppendPartition(topic, partition, len(data)) for data in built]
        request = AppendRequest(parts, ack="disk", create=False)
        pending = self._append([request], [memoryview(bytearray(b"".join(built)))])
        if not pending.is_written:
            await pending.write_rest()
        [reply] = await pending.wait()
        assert not isinstance(reply, errors.SeglogError), "its sizes are those of its batches"
        for batch, result in zip(batches, reply.partitions, strict=True):
            if result.error is None:
                self.written += batch.builder.record_count
                tried.done += batch.letters
            else:
                tried.error = result.error
                tried.refused += batch.letters

    def _end(self, work: _Work, taken: int, tried: _Try) -> None:
        """Archive the records whose letters are durable, or are given up; the rest is tried again.

        Of the letters that are left as many were ``taken``; others came since.
        """
        key, error = work.key.text, tried.error
        if self._runtime.machines.get(key) is not work.machine:  # the group is gone, or the topic
            self._problems.ends(key)
            if self._works[key] is work:
                del self._works[key]
            return
        given_up: list[Letters] = []
        refused: list[Letters] = []
        has_topic = bool(self._settings(work.key.group).dead_letter_topic)  # else nothing is waited for
        since = trio.current_time() - has_topic * self._config.current.seglog_share_dead_letter_retry_ms / 1000
        for letters in tried.refused:
            # Of records behind the start offset, which have left the state, there may be any number.
            is_over = letters.since <= since or letters.last < work.machine.start_offset
            (given_up if is_over else refused).append(letters)
        over = sorted([(letters.first, letters.last) for letters in (*tried.done, *given_up)])
        work.machine.end_archiving(over, self._runtime.now())
        self._runtime.carry_out(key, is_urgent=False)  # lost, the letters are written again
        work.left = [*refused, *tried.left, *work.left[taken:]]
        work.why_held_up = error if refused else None
        facts = {"group": work.key.group, "topic": self._topic_of(work), "partition": work.key.partition}
        if error is not None:
            work.due = trio.current_time() + work.retry_seconds
            work.retry_seconds = min(2 * work.retry_seconds, RETRY_SECONDS_MAX)
            work.is_one_by_one |= isinstance(error, OF_RECORDS)
            self.given_up += _count(given_up)
            for begin in range(0, len(given_up), RANGES_TOLD_MAX):
                some = [f"{first}-{last}" for first, last, *_ in given_up[begin : begin + RANGES_TOLD_MAX]]
                log.warning("dead_letters_given_up", **facts, offsets=some, reason=error.message)
            if refused and self._problems.begins(key, error.code):
                log.warning("dead_letters_held_up", **facts, reason=error.message)
        if not refused and self._problems.ends(key):
            log.info("dead_letters_go_on", **facts)
        del self._works[key]
        if work.left:
            self._works[key] = work  # behind others


def _apart(letters: Iterable[Letters]) -> list[Letters]:
    """Letters in the order of their offsets, one for each: after a failed write they were decided again."""
    found: list[Letters] = []
    for each in sorted(letters):
        end = found[-1].last + 1 if found else 0
        if each.last >= end:
            found.append(each if each.first >= end else each._replace(first=end))
    return found


def _count(letters: Iterable[Letters]) -> int:
    return sum([each.last - each.first + 1 for each in letters])
