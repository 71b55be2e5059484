"""A cut of a broker in the middle of a random life is what ``kill -9`` in that turn would leave.

Records, transactions, committed offsets and acknowledgements of a share group are written at all acks, segments are
rolled, expire and are deleted, topics come and go, and the disk is slow. Whenever a cut is given away, the files are
copied as far as it says, which is later; the copy has the bytes that were there in the turn of the cut, all of them
durable, and is opened by the recovery after a crash, with the end and the transactions that there were.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, Literal

import trio
import trio.testing
from trio._core import _run as _run_of_trio

from seglog_broker.api.broker import Broker
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.filenames import partition_directory_name
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import (
    CreateTopicRequest,
    DeleteTopicRequest,
    TruncatePartition,
    TruncateRequest,
)
from tests.appends import append_batch
from tests.cuts import Copier, logs_in
from tests.logs import ManualClock, batch, verify
from tests.support import each_case, some_seeds
from tests.unit.broker.coordinators.groups.service.running import NOW, SMALL_SEGMENTS, commit, open_broker
from tests.unit.broker.coordinators.share.service.sharing import acknowledged, begun, taken
from tests.unit.broker.coordinators.transactions.service import running as transactions
from tests.unit.simulation.interleaving import InterleavingOffload

FLAGS = (
    "log.segment.bytes=1024",
    "seglog.disk.ballast.bytes=0",
    "offsets.topic.num.partitions=2",
    "transaction.state.log.num.partitions=2",
    "share.coordinator.state.topic.num.partitions=2",
)
STEPS = 40
ACKS: Final[tuple[Literal["none", "os", "disk"], ...]] = "none", "os", "disk"
CUTS = 12


Work = Callable[[Broker], Awaitable[object]]


class Life:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.fs = ForgetfulFileSystem(is_recorded=False, begins_syncs=self.dice.random() < 0.5)
        self.copies = self.in_vain = 0
        self.over = False

    async def run(self) -> None:
        broker = open_broker(self.fs, ManualClock(NOW), *FLAGS, **SMALL_SEGMENTS)
        offload = InterleavingOffload(self.dice)
        broker.offload.commit = offload.commit  # type: ignore[method-assign] # the disk is slow
        async with trio.open_nursery() as nursery:
            for service in (broker.groups, broker.transactions, broker.share):
                nursery.start_soon(service.run)
            await trio.testing.wait_all_tasks_blocked()
            await broker.create_topic(CreateTopicRequest("t", 3))
            await transactions.with_orders(broker)
            async with trio.open_nursery() as writers:
                for work in (self._append, self._transact, self._commit, self._acknowledge, self._change):
                    writers.start_soon(self._work, work, broker)
                await self._follow(broker)
                self.over = True
            nursery.cancel_scope.cancel()
        broker.close()

    async def _work(self, work: Work, broker: Broker) -> None:
        for _ in range(STEPS):
            if self.over:
                return
            for _ in range(self.dice.randrange(8)):
                await trio.lowlevel.checkpoint()
            with suppress(SeglogError):  # the topic is there already, or is gone
                await work(broker)

    async def _append(self, broker: Broker) -> None:
        data = batch(*(b"v" * self.dice.randrange(200) for _ in range(self.dice.randrange(1, 4))))
        await append_batch(broker, data, "t", self.dice.randrange(3), ack=self.dice.choice(ACKS)).wait()

    async def _transact(self, broker: Broker) -> None:
        producer = await transactions.begun(broker, 0, 1, version=2)
        for number in 0, 1:
            await transactions.append(
                broker, producer, b"v" * 50, partition=number, ack=self.dice.choice(("os", "disk"))
            )
        if self.dice.random() < 0.8:
            await transactions.end(broker, producer, commit=self.dice.random() < 0.6, version=2)

    async def _commit(self, broker: Broker) -> None:
        await commit(broker, "group", broker.partitions["t", 0].log.log_end_offset)

    async def _acknowledge(self, broker: Broker) -> None:
        [machine] = await begun(broker, self.dice.randrange(3))
        with suppress(AssertionError):  # nothing to take
            for acquired in taken(broker, machine, 2):
                await acknowledged(broker, machine, acquired.first, acquired.last)

    async def _change(self, broker: Broker) -> None:
        match self.dice.randrange(4):
            case 0:
                await broker.create_topic(CreateTopicRequest("brief", 2))
            case 1:
                await append_batch(broker, batch(b"v"), "brief", 0, ack="os").wait()
            case 2:
                await broker.delete_topic(DeleteTopicRequest("brief"))
            case 3:
                log = broker.partitions["t", 0].log
                await broker.truncate(TruncateRequest([TruncatePartition("t", 0, log.log_end_offset // 2)]))

    # --- The cuts -----------------------------------------------------------------------------------------------------

    async def _follow(self, broker: Broker) -> None:
        copier = Copier(broker)
        for _ in range(CUTS):
            for _ in range(self.dice.randrange(60)):
                await trio.lowlevel.checkpoint()
            await copier.cut()
            for _ in range(self.dice.randrange(10)):
                await trio.lowlevel.checkpoint()
            copy = copier.copy()
            if copy is None:
                self.in_vain += 1
                continue
            self.copies += 1
            self._compare(broker, copier, copy)

    def _compare(self, broker: Broker, copier: Copier, copy: ForgetfulFileSystem) -> None:
        killed, durable = logs_in(copier.cuts.killed), logs_in(self.fs.found_after(POWER_LOSS))
        for path, content in logs_in(copy).items():
            assert content == killed[path], f"{path} is not as in the turn of the cut"
            assert durable.get(path, b"").startswith(content), f"{path} would not survive a power cut"
        directories = {partition_directory_name(*key) for key in copier.partitions}
        lost = [path for path in killed if path not in logs_in(copy) and path.split("/")[2] in directories]
        first = {partition_directory_name(*key): min(bases) for key, bases in copier.bases.items()}
        lost = [path for path in lost if int(path.split("/")[3][:20]) >= first[path.split("/")[2]]]
        assert not lost, "the copy lacks what was there"
        directory = open_log_directory(copy, ManualClock(NOW), broker.config, "/data")
        problems = [problem for problem in directory.report.problems if "were corrected" not in problem]
        assert (problems, directory.report.offline, directory.recovering) == ([], {}, {})
        assert directory.logs.keys() == copier.partitions.keys()
        for key, log in directory.logs.items():
            part = copier.partitions[key]
            assert (log.log_start_offset, log.log_end_offset) == (part.log_start, part.log_end), key
            verify(copy, log)


@each_case("seed", some_seeds(100, quick=6))
def test_a_cut_is_what_a_kill_would_leave(seed: int) -> None:
    life = Life(seed)
    _run_of_trio._r.seed(seed)
    trio.run(life.run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert life.copies > CUTS // 3, "of the others files were replaced meanwhile"
