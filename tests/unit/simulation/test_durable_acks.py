"""Power cuts under ``disk`` load: eight producers, twenty partitions, rolls, checkpoints and readers, on one broker.

The producers are idempotent, and many replies are lost: then they send the same batches again, often while the fsync
for the first ones is still running.

Before every file operation takes effect, the files that a power cut at this point would leave are opened, and
everything acked at ``disk`` so far must be in them. Only partitions with an operation or an ack since the last time are
checked: the others cannot have changed. Now and then, and after every change of a file of the whole directory, the
whole directory is opened too.

``MISTAKES`` are errors made on purpose. The same run finds each of them, which shows that it would find real ones.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.partitions import durability
from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io import filesystem
from seglog_broker.storage.io.filesystem import File, FileSystem, write_all
from seglog_broker.storage.io.flushes import Flush, run_flushes
from seglog_broker.storage.io.handle_pool import HandlePool, Lease
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.segment_indexes import SegmentIndexes
from seglog_broker.testing.forgetful import (
    POWER_LOSS,
    RANDOM,
    CrashPolicy,
    ForgetfulFileSystem,
    Operation,
)
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.header_scan import LocatedBatch
from tests.appends import append_request
from tests.logs import ManualClock, read_around, verify
from tests.support import ON_SOURCES, SOME_OR_ALL
from tests.unit.simulation import interleaving
from tests.unit.simulation.interleaving import InterleavingOffload

PRODUCERS: Final = 8
PARTITIONS: Final = 20
REQUESTS: Final = 10  # of each producer, of one to three batches
ANSWERS_LOST: Final = 0.3  # of all
SYNCED_ON_THE_LOOP: Final = 0.2  # of all, as if there were one client
SYNCED_BY_A_TASK: Final = 0.4  # as a listener has it; the others are led by whoever waits first
OPERATIONS_PER_FULL_LOOK: Final = 150
_TOPIC_CONFIG: Final = {"segment.bytes": 1024, "index.interval.bytes": 150, "segment.ms": 10**9}


class Simulation:
    """One run with a power cut before each ``step``-th operation; ``failure`` is the first broken promise."""

    def __init__(
        self, policy: Callable[[int], CrashPolicy], seed: int = 0, *, begins_syncs: bool = False, step: int = 1
    ) -> None:
        self.policy = policy
        self.step = step
        self.seed = seed
        self.fs = ForgetfulFileSystem(begins_syncs=begins_syncs)
        self.acked: dict[int, dict[int, bytes]] = {number: {} for number in range(PARTITIONS)}
        self.failure: BaseException | None = None
        self.points = self.rolls = self.duplicates = 0
        self._changed: set[int] = set()
        self._whole_changed = False
        self._topic_exists = False
        self._broker: Broker | None = None

    async def run(self) -> None:
        config = _config()
        self.fs.on_operation = self._cut_power
        with self._noting_failures():
            broker = Broker.open(config, self.fs, ManualClock(), InterleavingOffload(Random(self.seed)))
            broker.directory.handles._limit = 1
            await broker.create_topic(messages.CreateTopicRequest("t", PARTITIONS, dict(_TOPIC_CONFIG)))
            self._topic_exists, self._broker = True, broker
            async with trio.open_nursery() as nursery:
                async with trio.open_nursery() as producers:
                    nursery.start_soon(self._keep_house, broker)
                    nursery.start_soon(self._read, broker)
                    for number in range(PRODUCERS):
                        producers.start_soon(self._produce, broker, number, producers)
                nursery.cancel_scope.cancel()
            self.rolls, self.duplicates = broker.metrics.segments_rolled, broker.metrics.duplicates
            self._broker = None  # from here on the recovery points are written that only a whole start knows
            assert broker.hello().problems == []
            broker.close()
            self._look_at_all(POWER_LOSS)

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the run found
            self.failure = self.failure or error

    async def _produce(self, broker: Broker, producer: int, waiting: trio.Nursery) -> None:
        dice = Random(self.seed * 1000 + producer)
        producer_id = (await broker.init_producer()).producer_id
        sequences = dict.fromkeys(range(PARTITIONS), 0)
        for number in range(REQUESTS):
            if self.failure:
                return
            partitions = dice.sample(range(PARTITIONS), dice.choice([1, 1, 2, 3]))
            values = [f"producer {producer}, request {number}, partition {p}".encode() for p in partitions]
            batches = [
                encode_batch(
                    [(1000 + number, None, value + b"." * dice.randrange(450), ())],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequences[partition],
                )
                for partition, value in zip(partitions, values, strict=True)
            ]
            request = messages.AppendRequest(
                [messages.AppendPartition("t", p, len(b)) for p, b in zip(partitions, batches, strict=True)], "disk"
            )
            reply = await self._send(broker, request, b"".join(batches), dice, waiting)
            for value, result in zip(values, reply.partitions, strict=True):
                assert result.error is None, result.error
                assert result.base_offset is not None
                assert result.base_offset not in self.acked[result.partition], "offsets are not handed out twice"
                self.acked[result.partition][result.base_offset] = value
                self._changed.add(result.partition)
                sequences[result.partition] += 1

    @staticmethod
    async def _send(
        broker: Broker, request: messages.AppendRequest, payload: bytes, dice: Random, waiting: trio.Nursery
    ) -> messages.AppendReply:
        """Send until a reply arrives; requests whose replies are lost go on in ``waiting``."""
        while dice.random() < ANSWERS_LOST:
            waiting.start_soon(append_request(broker, request, memoryview(bytearray(payload))).wait)
            for _ in range(dice.randrange(6)):
                await trio.lowlevel.checkpoint()
        pending = append_request(broker, request, memoryview(bytearray(payload)))
        if dice.random() < SYNCED_ON_THE_LOOP:
            broker.sync_now()
        if dice.random() < SYNCED_BY_A_TASK:
            broker.sync_soon(waiting.start_soon)
        return await pending.wait()

    async def _keep_house(self, broker: Broker) -> None:
        while not self.failure:
            for partition in broker.partitions.values():
                offset = await broker.checkpoints.sync(partition)
                if offset is not None:
                    broker.directory.partitions.note_recovery_point((partition.topic, partition.number), offset)
                for _ in range(7):
                    await trio.lowlevel.checkpoint()
            await broker.checkpoints.write()

    async def _read(self, broker: Broker) -> None:
        """A slow reader of acked records, while files are rolled, flushed and closed."""
        dice = Random(self.seed)
        while not self.failure:
            number = dice.randrange(PARTITIONS)
            with await broker.fetch(
                messages.FetchRequest([messages.FetchPartition("t", number, 0)], max_wait_ms=0)
            ) as answer:
                for piece in answer.slices:
                    await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
                    assert len(piece.file.pread(piece.size, piece.position)) == piece.size
            await trio.lowlevel.checkpoint()

    # --- Power cuts ---------------------------------------------------------------------------------------------------

    def _cut_power(self, operation: Operation) -> None:
        if self.failure:
            return
        self.points += 1
        if self.points % self.step == 0:
            self._look(operation)
        name = operation.path.removeprefix("/data/").partition("/")[0]
        if name.startswith("t-"):
            self._changed.add(int(name.removeprefix("t-")))
        else:
            self._whole_changed = True

    def _look(self, operation: Operation) -> None:
        policy = self.policy(self.points)
        try:
            with self._noting_failures():
                if self._whole_changed or self.points % OPERATIONS_PER_FULL_LOOK == 0:
                    self._look_at_all(policy)
                else:
                    self._look_at(policy, self._changed)
        finally:
            if self.failure:
                self.failure.add_note(f"power cut {self.points}, before {operation}")
        self._changed, self._whole_changed = set(), False

    def _look_at(self, policy: CrashPolicy, partitions: set[int]) -> None:
        if not partitions or self._broker is None:
            return
        found = self.fs.found_after(policy)
        points = checkpoints.decode_offsets(
            filesystem.read_file(found, f"/data/{checkpoints.RECOVERY_POINT_CHECKPOINT}")
            if found.exists(f"/data/{checkpoints.RECOVERY_POINT_CHECKPOINT}")
            else checkpoints.encode_offsets({})
        )
        for number in partitions:
            before = self._broker.partitions["t", number].log
            log = PartitionLog(
                load(
                    found,
                    HandlePool(found),
                    ManualClock(),
                    before.directory,
                    before.config,
                    clean=False,
                    recovery_point=points.get(("t", number), 0),
                )
            )
            self._check(found, number, log, before.leader_epoch)

    def _look_at_all(self, policy: CrashPolicy) -> None:
        found = self.fs.found_after(policy)
        if not found.exists("/data"):
            return
        directory = open_log_directory(found, ManualClock(), _config(), "/data")
        report = directory.report
        # A roll makes the .log first, but a power cut may keep another name alone: nothing of it was promised then.
        problems = [problem for problem in report.problems if ".log is missing, its index files exist" not in problem]
        assert (problems, report.offline) == ([], {})
        if self._topic_exists:
            assert set(directory.registry.topics) == {"t"}
        for (_, number), log in directory.logs.items():
            self._check(found, number, log, -1)

    def _check(self, fs: ForgetfulFileSystem, number: int, log: PartitionLog, epoch_before: int) -> None:
        verify(fs, log)
        assert log.leader_epoch > epoch_before, "(leader epoch, offset) is never handed out twice"
        found = {record.offset: record.value or b"" for record in read_around(log)}
        assert len(set(found.values())) == len(found), "nothing is there twice"
        for offset, value in self.acked[number].items():
            assert found.get(offset, b"").rstrip(b".") == value, f"partition {number} has lost offset {offset}"


def _config() -> BrokerConfig:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    return config


@pytest.mark.parametrize(
    "policy",
    [pytest.param(lambda _point: POWER_LOSS, marks=pytest.mark.soak), RANDOM],
    ids=["nothing unsynced stays", "anything may stay"],
)
@pytest.mark.parametrize(
    "begins_syncs",
    [pytest.param(False, marks=pytest.mark.soak), True],
    ids=["syncs in a thread", "syncs without a thread"],
)
@SOME_OR_ALL
async def test_whenever_the_power_goes_nothing_acked_at_disk_is_lost(
    policy: Callable[[int], CrashPolicy], begins_syncs: bool, step: int
) -> None:
    simulation = Simulation(policy, begins_syncs=begins_syncs, step=step)
    await simulation.run()
    if simulation.failure is not None:
        raise simulation.failure
    assert simulation.points > 1000, "operations, and a power cut at each of the step"
    assert simulation.rolls > 30
    assert sum(map(len, simulation.acked.values())) > 100
    assert simulation.duplicates > 30


# --- Mistakes ---------------------------------------------------------------------------------------------------------

Mistake = Callable[[pytest.MonkeyPatch], None]


def fsync_left_out(patch: pytest.MonkeyPatch) -> None:
    """A round that does nothing for logs and reports success."""
    sync_files = ForgetfulFileSystem.sync_files

    def sync(fs: ForgetfulFileSystem, files: Sequence[File]) -> list[OSError | None]:
        return sync_files(fs, [file for file in files if not fs.handles[file].endswith(".log")]) or [None] * len(files)

    patch.setattr(ForgetfulFileSystem, "sync_files", sync)


def fsync_of_the_directory_left_out(patch: pytest.MonkeyPatch) -> None:
    """The bytes of a new segment are on the disk, its name is not."""
    sync_directories = ForgetfulFileSystem.sync_directories

    def sync(fs: ForgetfulFileSystem, paths: Sequence[str]) -> list[OSError | None]:
        new = [path for path in paths if sum(name.endswith(".log") for name in fs.list_directory(path)) > 1]
        return sync_directories(fs, [path for path in paths if path not in new]) or [None] * len(paths)

    patch.setattr(ForgetfulFileSystem, "sync_directories", sync)


def only_the_newest_segment_synced(patch: pytest.MonkeyPatch) -> None:
    """An ack that does not cover the offsets before a roll."""

    def run(fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        for flush in flushes:
            for lease in flush.leases[1:]:
                lease.release()
            flush.leases = flush.leases[:1]
        return all_of(fs, flushes)

    all_of = run_flushes
    patch.setattr(interleaving, "run_flushes", run)


def ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """The fsync is made, but the ack does not wait for it."""

    async def do_not_wait(_partition: Partition, _offset: int) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(durability, "wait_durable", do_not_wait)


def duplicate_acked_before_its_fsync(patch: pytest.MonkeyPatch) -> None:
    """A repeated batch is acked at once, as if it were on the disk."""
    wait_for = PendingAppends.wait_for

    def do_not_wait(
        pending: PendingAppends,
        partition: Partition,
        end_offset: int,
        results: list[messages.AppendResult],
        number: int,
    ) -> None:
        wait_for(pending, partition, 0 if results[number].duplicate else end_offset, results, number)

    patch.setattr(PendingAppends, "wait_for", do_not_wait)


def rename_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """Small files get their names before their bytes are on the disk."""

    def write(fs: FileSystem, path: str, content: bytes, *, sync: bool = True) -> None:
        file = fs.open(f"{path}.tmp", create=True)
        file.truncate(0)
        write_all(file, [content], 0)
        fs.rename(f"{path}.tmp", path)
        fs.sync_directory(filesystem.parent(path))
        if sync:
            file.fdatasync()
        file.close()

    def write_together(fs: FileSystem, contents: Sequence[tuple[str, bytes]], *, sync: bool = True) -> None:
        for path, content in contents:
            write(fs, path, content, sync=sync)

    for module in (
        "partitions.checkpoint_writer",
        "storage.directory.topic_registry",
        "storage.directory.log_directory",
    ):
        patch.setattr(f"seglog_broker.{module}.write_file_atomically", write)
    patch.setattr("seglog_broker.storage.log.leader_epochs.write_files_atomically", write_together)


def index_trusted_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    """A recovery reads the log, and uses the existing index files unchecked."""
    rebuild = SegmentIndexes.rebuild

    def rebuild_missing(indexes: SegmentIndexes, batches: Iterable[LocatedBatch] | None = None) -> int | None:
        if not (indexes.offset_index.exists and indexes.time_index.exists):
            return rebuild(indexes, batches)
        next_offset = None
        for batch in batches or ():  # all that a recovery learns of a log it learns on this way
            next_offset = batch.header.next_offset
        return next_offset

    patch.setattr(SegmentIndexes, "rebuild", rebuild_missing)


def handle_closed_while_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    """The leases of a flush are released before it has run."""
    make = Flush.__init__

    def release_early(
        flush: Flush, fs: FileSystem, leases: Sequence[Lease[File]], directory: str | None, end_offset: int
    ) -> None:
        make(flush, fs, leases, directory, end_offset)
        flush.release()

    patch.setattr(Flush, "__init__", release_early)


MISTAKES: Final[dict[Mistake, str]] = {
    fsync_left_out: "has lost offset",
    fsync_of_the_directory_left_out: "has lost offset",
    only_the_newest_segment_synced: "has lost offset",
    ack_before_fsync: "has lost offset",
    duplicate_acked_before_its_fsync: "has lost offset",
    rename_before_fsync: "seglog-topics.json cannot be understood",
    index_trusted_after_a_crash: "AssertionError('/data/t-",
    handle_closed_while_it_is_synced: "EBADF",
}
"""Each mistake with a piece of what the run says when it catches it."""


@ON_SOURCES
@pytest.mark.parametrize(
    "mistake",
    [pytest.param(mistake, marks=[] if at % 3 == 0 else [pytest.mark.soak]) for at, mistake in enumerate(MISTAKES)],
    ids=lambda mistake: mistake.__name__,
)
async def test_a_mistake_made_on_purpose_is_caught(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(lambda _point: POWER_LOSS)
    with monkeypatch.context() as patch:
        mistake(patch)
        await simulation.run()
    assert simulation.failure is not None, f"{mistake.__name__} is not caught"
    assert MISTAKES[mistake] in repr(simulation.failure)
