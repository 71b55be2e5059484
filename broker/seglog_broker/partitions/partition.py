"""A partition in service: its log, the fetches that wait for records, and the requests that wait for the disk.

It belongs to the loop, and neither it nor the log waits: what does is in ``durability``, ``checkpoint_writer`` and
``cleaning``. Flushes of one log never overlap: rounds of ``group_commit`` serve acks, checkpoints have flushes of
their own, and neither begins while the other uses the log.
"""

from typing import Final, NamedTuple

import trio

from seglog_broker.config import TopicConfig
from seglog_broker.logger import get_logger
from seglog_broker.partitions.commit_round import Flushable, Round
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import RecentAnswer
from seglog_broker.partitions.group_commit import GroupCommit
from seglog_broker.runtime.metrics import Metrics, NotDurablePart
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.batch_checks import record_rules
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recompression import recompression
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol.errors import PartitionReadOnlyError, SeglogError, StorageError, UnknownTopicError
from seglog_protocol.transaction_files import END_MARKER_SIZE

log = get_logger()

DAMAGES_TOLD_MAX: Final = 3
"""Of one partition: enough for an operator to look into it."""

FINDINGS_TOLD_MAX: Final = 3
"""Of one partition."""

ROLLED_BY_TIME: Final = "segment.ms counts the timestamps of records: raise it for records that span years"
"""Beside the first lines about segments rolled by time, which old records do by the hundred."""


class Problem(NamedTuple):
    """A problem of the broker: its kind, which programs go by (see ``HelloReply``), and a sentence for the operator."""

    kind: str
    sentence: str


class Partition(Flushable):
    """One partition of a topic, while the topic exists."""

    def __init__(self, topic: str, number: int, log: PartitionLog, metrics: Metrics, commits: GroupCommit) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.end_offset_at_start: Final = log.log_end_offset
        """The log end when the partition came into service: after a start, a recovery, or its creation."""
        self.waiters: set[Waiter] = set()
        self.recent_answer: RecentAnswer | None = None
        self.append_failure: str | None = None  # why the last append could not be written, None if it could
        self.next_expiry_ms: int | None = None  # when retention.ms deletes the oldest segment, by the last check
        self.problems: dict[str, str] = {}  # task name -> why the task failed here
        self.findings: dict[int, str] = {}  # base offset -> finding of the scrub
        self.maintenance = trio.Lock()  # held while files are renamed in a thread
        self.may_be_cleaned = True
        self.cleaning: tuple[trio.CancelScope, trio.Event] | None = None  # the round under way, and when it has ended
        self.is_deleted = False
        self.not_durable = NotDurablePart(metrics.not_durable)
        self.expired_on_arrival = 0
        """Records appended whose timestamps were past retention.ms already."""
        self.commits = commits
        self._feed = commits.feed
        self._judged_config: TopicConfig | None = None
        self._looks_at_records = False  # by that configuration
        self._metrics = metrics
        self._under_way: Flush | None = None  # the one flush there may be
        self._flushed = trio.Event()  # set when it has ended
        self._is_checkpointing = False  # it is a checkpoint's, and of no use to those who wait for the disk
        self._was_read_only = log.state.read_only is not None

    @property
    def looks_at_records(self) -> bool:
        """Whether the records of a batch may be looked at before it is appended, and not its header alone."""
        config = self.log.config
        if config is not self._judged_config:
            self._judged_config = config
            self._looks_at_records = record_rules(config, 0) is not None or recompression(config) is not None
        return self._looks_at_records

    def note_written(self, size: int, records: int) -> None:
        """Count batches of ``size`` bytes together that were appended and are not durable yet."""
        self.not_durable.add(size)
        feed = self._feed
        if feed.is_followed:
            feed.note_written(self, size, records)

    def note_changed(self, *, is_replaced: bool = False) -> None:
        """Tell who follows that the segments are others, not only longer; or that files were replaced by others."""
        self._feed.note_changed(self, is_replaced=is_replaced)

    def note_append(self, size: int) -> None:
        """Wake the fetches that now have enough bytes."""
        for waiter in self.waiters:
            waiter.bytes_wanted -= size
            if waiter.bytes_wanted <= 0:
                waiter.wake()

    def append_marker(self, end: TransactionEnd) -> int:
        """End a producer's transaction in this partition; returns the offset behind the marker.

        The end counts once that is durable: see ``want_durable``. Records below the new last stable offset can be read
        at once. Raises what the log's ``append_marker`` does, and UnknownTopicError when the topic was deleted.
        """
        if self.is_deleted:
            raise UnknownTopicError(f"topic {self.topic} was deleted", topic=self.topic)
        try:
            appended = self.log.append_marker(end)
        except StorageError as error:
            self.note_read_only()
            raise self.with_partition(error) from error
        if appended.rolled is not None:
            self.note_rolled(str(appended.rolled), appended.base_offset)
        self.note_written(END_MARKER_SIZE, 1)
        self.wake_all()  # whatever they wait for: much more than the marker may have become stable
        return appended.last_offset + 1

    def note_deleted(self) -> None:
        """Wake all waiting fetches and requests, because the topic is deleted."""
        self.is_deleted = True
        self._feed.note_deleted(self, (self.topic, self.number))
        self.not_durable.clear()
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all fetches that wait for records, so that they are retried."""
        for waiter in self.waiters:
            waiter.wake()

    def note_rolled(self, reason: str, base_offset: int | None = None) -> None:
        """Count and log that a new segment was begun, at ``base_offset``; if left out, the active one."""
        self._metrics.segments_rolled += 1
        self.note_changed()
        base_offset = self.log.active.base_offset if base_offset is None else base_offset
        facts = {} if reason != RollReason.TIME else {"why": ROLLED_BY_TIME}
        log.info(
            "segment_rolled", topic=self.topic, partition=self.number, base_offset=base_offset, reason=reason, **facts
        )

    def tell_mended_indexes(self) -> None:
        """Log which transaction indexes were wrong, and have been built again."""
        for base in self.log.transactions.mended:
            reason = "its .txnindex was not as it had been written"
            log.warning("index_wrong", topic=self.topic, partition=self.number, segment=base, reason=reason, rebuilt=1)
        self.log.transactions.mended.clear()

    @property
    def has_problems(self) -> bool:
        """Whether ``what_is_wrong`` has a sentence: every hello and every scrape asks each partition."""
        if self.append_failure or self.problems or self.findings:
            return True
        state = self.log.state_file.state
        return bool(state.read_only or state.damaged)

    def what_is_wrong(self) -> list[Problem]:
        """The problems of the partition."""
        if not self.has_problems:
            return []
        state = self.log.state
        name = f"{self.topic}-{self.number}"
        # What is missing before it is a problem of the start.
        begins = max(self.log.log_start_offset, self.log.segments.bases[0])
        of_disk = [] if state.read_only is None else [f"{name} is read-only because {state.read_only}"]
        if self.append_failure is not None:
            of_disk.append(f"{name} takes no records: {self.append_failure}")
        of_disk += [f"{name}: {task} is held up: {reason}" for task, reason in self.problems.items()]
        damages = [f"{name}: {what}" for what in list(self.findings.values())[:FINDINGS_TOLD_MAX]]
        damages += [
            f"{name}: {_damage_in_words(damage)}"
            + (", or were never synced before a crash: Kafka's clients pass them" if state.is_unsynced(damage) else "")
            for damage in [d for d in state.damaged if d.end_offset > begins][:DAMAGES_TOLD_MAX]
        ]
        return [*(Problem("disk", each) for each in of_disk), *(Problem("damage", each) for each in damages)]

    def want_durable(self) -> Round:
        """Add everything appended so far to the next round. It begins only when a task calls ``wait_durable``."""
        return self.commits.want(self)

    def flush_to_await(self, offset: int) -> trio.Event | None:
        """What is set when the flush under way ends, if that has to be waited for before ``offset`` can be durable.

        None if it is the next round that ``offset`` needs. Raises PartitionReadOnlyError when the disk failed,
        UnknownTopicError when the topic was deleted.
        """
        if self.is_deleted:
            raise UnknownTopicError(f"topic {self.topic} was deleted", topic=self.topic)
        if self.log.state.read_only is not None:
            raise PartitionReadOnlyError(
                f"it is not known what reached the disk, because {self.log.state.read_only}",
                topic=self.topic,
                partition=self.number,
                reason=self.log.state.read_only,
            )
        under_way = self._under_way
        if under_way is not None and (self._is_checkpointing or under_way.end_offset >= offset):
            return self._flushed
        return None

    def begin_flush(self) -> Flush | None:
        """The flush of this partition for a round, None if there is nothing to sync. Raises StorageError."""
        if self._under_way is not None or self.is_deleted or self.log.state.read_only is not None:
            return None  # waiting requests join a round again when the checkpoint ends
        if self.log.durable_end_offset == self.log.log_end_offset:
            self.not_durable.clear()
            return None
        flush = self._under_way = self.log.prepare_flush()
        if flush.end_offset == self.log.log_end_offset:
            self.not_durable.begin_flush()
        self._flushed = trio.Event()
        return flush

    def begin_checkpoint(self) -> Flush | trio.Event | None:
        """A flush of a checkpoint, which may sync only some closed segments; end it as those of rounds.

        While another one is under way, what is set when it ends. None if the topic was deleted: its paths may belong to
        another one now.
        """
        if self._under_way is not None:
            return self._flushed
        if self.is_deleted:
            return None
        flush = self._under_way = self.log.flusher.prepare_checkpoint()
        self._flushed = trio.Event()
        self._is_checkpointing = True
        return flush

    def end_flush(self, flush: Flush, error: OSError | None) -> StorageError | None:
        """Record the outcome of a flush. Returns the error for the waiting requests if it is retriable, else None."""
        try:
            self._note_flushed(flush, error)
        finally:  # whatever that raises: nobody waits for this flush any more, and another one may begin
            self._under_way = None
            self._is_checkpointing = False
            self._flushed.set()
        if error is None or self.log.state.read_only is not None or self.is_deleted:
            return None
        failed = StorageError(f"{self.topic}-{self.number} could not be synced now: {why(error)}; try again")
        failed.retriable = True
        return failed

    def _note_flushed(self, flush: Flush, error: OSError | None) -> None:
        if self.is_deleted:
            flush.release()
            return
        self.log.finish_flush(flush, error)
        if self.log.durable_end_offset == self.log.log_end_offset:
            self.not_durable.clear()
        else:
            self.not_durable.end_flush(is_durable=self.log.durable_end_offset >= flush.end_offset)
        self.note_read_only()

    def note_read_only(self) -> None:
        """Log, once, that the log takes no more records."""
        reason = self.log.state.read_only
        if reason is not None and not self._was_read_only:
            self._was_read_only = True
            log.error("partition_read_only", topic=self.topic, partition=self.number, reason=reason)

    @property
    def can_be_cleaned(self) -> bool:
        """Whether a round of compaction may begin."""
        return (
            self.cleaning is None
            and self.may_be_cleaned
            and not self.is_deleted
            and self.log.state.read_only is None
            and not self.log.segments.awaited
            and "compact" in self.log.config.cleanup_policy
        )

    @property
    def is_being_cleaned(self) -> bool:
        """Whether a round of compaction is running. Meanwhile the closed segments do not change."""
        return self.cleaning is not None

    def with_partition(self, error: SeglogError) -> SeglogError:
        """``error`` with the topic and the partition as fields, for readers of an error without its request."""
        placed = type(error)(error.message, **({"topic": self.topic, "partition": self.number} | error.facts))
        placed.retriable = error.retriable
        return placed


def _damage_in_words(damage: DamagedRange) -> str:
    if damage.start_offset < damage.end_offset:
        return f"offsets {damage.start_offset} to {damage.end_offset - 1} are {damage.reason}"
    size = damage.end_position - damage.position
    return f"{size} bytes at position {damage.position} of segment {damage.segment} hold no record batch"
