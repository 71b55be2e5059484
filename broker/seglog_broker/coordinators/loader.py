"""Loads the state of a coordinator from its topic after a start, in turns with the requests that are served."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import trio

from seglog_broker.coordinators.state_machine import Replay
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.errors import CorruptRecordError, PartitionOfflineError, SeglogError
from seglog_protocol.record_batch import BatchHeader, iter_batches
from seglog_protocol.records import Record, RecordReader

RECOVERY_POLL_SECONDS: Final = 0.05
"""Seconds between two looks whether a partition has been recovered."""

BYTES_AT_A_TIME: Final = 256 * 1024
"""Bytes that are read, and verified, at a time; a larger batch at once."""

RECORD_COST: Final = 16
"""Microseconds to read and replay a record of at most BYTES_OF_RECORD."""

BYTES_OF_RECORD: Final = 512
"""A record with a multiple of them costs so many times as much more."""

RECORDS_A_TURN: Final = budget.items_of(RECORD_COST)
"""Small records that are read before other tasks run."""

log = get_logger()

ReplayT = TypeVar("ReplayT", bound=Replay)


@dataclass(eq=False, repr=False)
class StateLoader(Service, Generic[ReplayT]):
    """Which partitions of a coordinator's topic are loaded, and the task that loads them, one after the other."""

    _topic: StateTopic
    _make_replay: Callable[[], ReplayT]
    _keep: Callable[[ReplayT], Awaitable[None]]  # of a partition; requests about its keys are refused until it returns

    def __post_init__(self) -> None:
        partitions = range(self._topic.partitions) if self._topic.exists else ()
        self._unloaded: dict[int, trio.Event] = {number: trio.Event() for number in partitions}
        self._failed: dict[int, str] = {}  # partition -> why it cannot be loaded

    @property
    def is_loading(self) -> bool:
        """True while the state of some keys is not known yet."""
        return bool(self._unloaded)

    @property
    def is_complete(self) -> bool:
        """True once the state of all keys is known; it stays False where a partition cannot be loaded."""
        return not self._unloaded and not self._failed

    def is_unloaded(self, key: str) -> bool:
        """True while the state of a coordinator key is not known yet."""
        return bool(self._unloaded) and self._topic.partition_of(key) in self._unloaded

    def has_unloaded(self, number: int) -> bool:
        """True while the state of the keys of a partition is not known yet."""
        return number in self._unloaded

    def failure(self, key: str) -> str | None:
        """Why the state of a coordinator key cannot be loaded; None if it can, or is."""
        return self._failed.get(self._topic.partition_of(key)) if self._failed else None

    @property
    def failed(self) -> Collection[int]:
        """The partitions that cannot be loaded."""
        return self._failed.keys()

    @property
    def any_failure(self) -> str | None:
        """Why the state of some keys cannot be loaded; None if all of it can, or is."""
        return next(iter(self._failed.values()), None)

    async def loaded(self, number: int) -> None:
        """Wait until a partition is loaded, or cannot be."""
        unloaded = self._unloaded.get(number)
        if unloaded is not None:
            await unloaded.wait()

    async def run(self) -> float | None:
        """Load every partition. Returns the seconds that it took, None where nothing was ever written."""
        if not self._unloaded:
            return None
        began = trio.current_time()
        for number in sorted(self._unloaded):
            replay = self._make_replay()
            try:
                partition = await self._in_service(number)
                await self._replay(partition, replay)
            except (SeglogError, OSError) as error:
                # Of what was read nothing is kept: a later record, which was not read, may have replaced it.
                self._failed[number] = reason = why(error) if isinstance(error, OSError) else error.message
                log.error("coordinator_not_loaded", topic=self._topic.name, partition=number, reason=reason)  # noqa: TRY400
            else:
                for reason, count in replay.unknown.items():
                    log.warning(
                        "coordinator_records_skipped",
                        topic=self._topic.name,
                        partition=number,
                        records=count,
                        reason=reason,
                    )
                await self._keep(replay)
            self._unloaded.pop(number).set()
        return round(trio.current_time() - began, 3)

    async def _in_service(self, number: int) -> Partition:
        """A partition, once it is recovered. Raises PartitionOfflineError."""
        name = self._topic.name
        while True:
            partition = self._table.find_readable(name, number)
            if partition is not None:
                return partition
            if self._recoveries.refusal(name, number) is None:
                self._table.partition(name, number)  # raises why it is not there
                raise PartitionOfflineError(f"{name}-{number} is not in service")
            await trio.sleep(RECOVERY_POLL_SECONDS)

    async def _replay(self, partition: Partition, replay: Replay) -> None:
        """Replay a partition; damaged batches are skipped, with an error in the log. Raises StorageError, OSError."""
        offset, end = partition.log.log_start_offset, partition.log.log_end_offset
        while offset < end:
            try:
                offset = await self._replay_some(partition, offset, replay)
            except CorruptRecordError as error:
                following = error.next_offset if error.next_offset > offset else end
                log.error(  # noqa: TRY400 - no failure of the program
                    "coordinator_records_damaged",
                    topic=partition.topic,
                    partition=partition.number,
                    start_offset=offset,
                    next_offset=following,
                    reason=error.message,
                    consequence="what was written there counts as if it had not been",
                )
                offset = following

    async def _replay_some(self, partition: Partition, offset: int, replay: Replay) -> int:
        """Replay some batches from ``offset`` on. Returns the offset behind them."""
        data = await self._scheduler.read_batches(partition.log, offset, BYTES_AT_A_TIME)
        if not data:
            return partition.log.log_end_offset
        turns = budget.Turns(self._scheduler.turn)  # for all: most batches hold few records
        for header, batch in iter_batches(data):
            if header.next_offset > offset:
                await self._replay_batch(header, batch, replay, turns)
                offset = header.next_offset
        return offset

    async def _replay_batch(self, header: BatchHeader, batch: memoryview, replay: Replay, turns: budget.Turns) -> None:
        reader = RecordReader(header, batch, Record, at_once=RECORDS_A_TURN)
        while not reader.is_finished:
            for record in reader.read():
                for _ in replay.read(header, (record,)):
                    await self._scheduler.turn()
                await turns.spend(RECORD_COST * (1 + len(record.value or b"") // BYTES_OF_RECORD))
