"""Groups commit, and topics are written, truncated, deleted and made again, while a start after a crash still loads.

A plain model keeps, for each group and partition, what may be committed: the last answered commit and any that was not
answered. Once a commit, a look-up or a deletion has been answered after a start, the model has that alone, and it must
stay until the next crash, whatever the start still does. After a power cut an offset that was not answered yet may also
be the end that its log had at the start.
"""

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import IN_LINE_BYTES, Broker
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.partitions.partition import Partition
from seglog_broker.server import TASKS
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, ForgetfulFileSystem
from seglog_protocol import errors, messages
from tests.appends import append_request
from tests.logs import ManualClock, batch
from tests.support import soak_scaled, soak_seed
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker

GROUPS = [f"g-{number}" for number in range(6)]
TOPICS = ["t", "u"]
STARTS = 4
ACTIONS = 25
_NOTHING = -1

Slot = tuple[str, str]  # group and topic


class Simulation:
    """One seed: a broker that crashes several times, and the model.

    With an odd seed every log is recovered beside the requests, else before them.
    """

    def __init__(self, seed: int) -> None:
        self._in_line_bytes = 0 if seed % 2 else IN_LINE_BYTES
        self.random = random.Random(seed)
        self.may_be: dict[Slot, set[int]] = defaultdict(lambda: {_NOTHING})
        self.answered: set[Slot] = set()  # since the start
        self.busy: set[str] = set()  # slots and topics with a request under way, as text
        self.ends: dict[str, int] = {}
        self.broker: Broker

    async def run(self) -> None:
        fs = ForgetfulFileSystem()
        for _ in range(STARTS):
            self.broker = open_broker(
                fs, ManualClock(NOW), "offsets.topic.num.partitions=4", in_line_bytes=self._in_line_bytes
            )
            self.answered.clear()
            self.busy.clear()
            await self._one_start()
            fs = fs.crash(self.random.choice([POWER_LOSS, PROCESS_KILL, RANDOM(self.random.randrange(1 << 30))]))

    async def _one_start(self) -> None:
        self.ends = {topic: log.log_end_offset for (topic, _), log in self.broker.directory.logs.items()}
        ends = self.ends

        class Served(dict[tuple[str, int], Partition]):
            def __setitem__(self, key: tuple[str, int], partition: Partition) -> None:
                ends[key[0]] = partition.log.log_end_offset
                super().__setitem__(key, partition)

        self.broker.partitions._served = Served(self.broker.partitions._served)
        crashes_early = self.random.random() < 0.3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.broker.groups.run)
            nursery.start_soon(TASKS["recovery"], self.broker)
            async with trio.open_nursery() as requests:
                for _ in range(ACTIONS):
                    requests.start_soon(self._act, self.random.random())
                    for _ in range(self.random.randrange(8)):
                        await trio.lowlevel.checkpoint()
                if crashes_early:
                    requests.cancel_scope.cancel()
            if crashes_early:
                self._note_unanswered()
            else:
                await trio.sleep(1)
                for group in GROUPS:
                    for topic in TOPICS:
                        self._look_up((group, topic), is_loaded=True)
            nursery.cancel_scope.cancel()

    def _note_unanswered(self) -> None:
        """What this start has clamped may be durable or not."""
        for group in GROUPS:
            for topic in TOPICS:
                slot = group, topic
                if slot not in self.answered and topic in self.ends:
                    self.may_be[slot] = self.may_be[slot] | self._clamped(topic)

    def _clamped(self, topic: str) -> set[int]:
        log = self.broker.directory.logs.get((topic, 0))
        return {self.ends[topic]} if log is None else {self.ends[topic], *range(log.log_start_offset + 1)}

    async def _act(self, chance: float) -> None:
        topic = self.random.choice(TOPICS)
        slot = self.random.choice(GROUPS), topic
        if chance < 0.35:
            await self._alone([f"{slot}", topic], lambda: self._commit(slot))
        elif chance < 0.6:
            await self._alone([], lambda: self._append(topic))
        elif chance < 0.85:
            if f"{slot}" not in self.busy and topic not in self.busy:
                self._look_up(slot)
        elif chance < 0.9:
            await self._alone([], lambda: self._truncate(topic))
        elif chance < 0.95:
            await self._alone([f"{slot}", *(f"{(slot[0], other)}" for other in TOPICS)], lambda: self._drop(slot[0]))
        else:
            await self._alone([topic, *(f"{(group, topic)}" for group in GROUPS)], lambda: self._make_again(topic))

    async def _alone(self, wanted: list[str], act: Callable[[], Awaitable[None]]) -> None:
        """Act if no other request is about the same; requests about others go on beside."""
        mine = [key for key in wanted if key not in TOPICS or key == wanted[0]]
        if self.busy.intersection(wanted):
            return
        self.busy.update(mine)
        try:
            with suppress(errors.SeglogError):
                await act()
        finally:
            self.busy.difference_update(mine)

    async def _append(self, topic: str) -> None:
        data = batch(*(b"v" for _ in range(self.random.randrange(1, 6))))
        request = messages.AppendRequest(
            [messages.AppendPartition(topic, 0, len(data))], "os" if self.random.random() < 0.5 else "disk"
        )
        await append_request(self.broker, request, memoryview(bytearray(data))).wait()

    async def _commit(self, slot: Slot) -> None:
        group, topic = slot
        log = self.broker.directory.logs.get((topic, 0))
        if log is None:
            return
        offset = log.log_end_offset
        before = self.may_be[slot]
        self.may_be[slot] = before | {offset}
        try:
            (error,) = await self.broker.groups.commit(group, Committer(), [OffsetToCommit(topic, 0, offset)])
        except errors.CoordinatorLoadingError:
            self.may_be[slot] = before
            return
        if error is None:
            self.may_be[slot] = {offset}
            self.answered.add(slot)

    def _look_up(self, slot: Slot, *, is_loaded: bool = False) -> None:
        group, topic = slot
        try:
            (found,) = self.broker.groups.committed(group, [(topic, 0)])
        except errors.CoordinatorLoadingError:
            assert not is_loaded
            return
        allowed = self.may_be[slot]
        if found.offset not in allowed or (slot not in self.answered and found.offset > self.ends.get(topic, 0)):
            assert slot not in self.answered, (slot, found.offset, allowed)
            assert max(allowed) > self.ends[topic], (slot, found.offset, allowed, self.ends)
            log = self.broker.directory.logs[topic, 0]
            assert found.offset in {self.ends[topic], log.log_start_offset}, (slot, found.offset, allowed, self.ends)
        self.may_be[slot] = {found.offset}
        self.answered.add(slot)

    async def _truncate(self, topic: str) -> None:
        log = self.broker.directory.logs.get((topic, 0))
        if log is not None:
            offset = self.random.randint(0, log.log_end_offset)
            await self.broker.truncate(messages.TruncateRequest([messages.TruncatePartition(topic, 0, offset)]))

    async def _drop(self, group: str) -> None:
        before = {topic: self.may_be[group, topic] for topic in TOPICS}
        for topic in TOPICS:
            self.may_be[group, topic] = before[topic] | {_NOTHING}
        (error,) = await self.broker.groups.delete([group])
        for topic in TOPICS:
            slot = group, topic
            if error is None or isinstance(error, errors.UnknownGroupError):
                self.may_be[slot] = {_NOTHING}
                self.answered.add(slot)
            elif isinstance(error, errors.CoordinatorLoadingError):
                self.may_be[slot] = before[topic]

    async def _make_again(self, topic: str) -> None:
        for group in GROUPS:
            self.may_be[group, topic] = self.may_be[group, topic] | {_NOTHING}
        if topic in self.broker.directory.registry.topics:
            await self.broker.delete_topic(messages.DeleteTopicRequest(topic))
        await self.broker.create_topic(messages.CreateTopicRequest(topic, 1))
        self.ends[topic] = 0
        for group in GROUPS:
            self.may_be[group, topic] = {_NOTHING}
            self.answered.add((group, topic))


@pytest.mark.parametrize("part", [None, *(pytest.param(part, marks=pytest.mark.soak) for part in range(10))])
async def test_what_is_answered_while_groups_load_stays(
    autojump_clock: object, subtests: pytest.Subtests, part: int | None
) -> None:
    del autojump_clock
    begin = 0 if part is None else soak_seed() * 1_000 + 100 * part
    for seed in range(begin, begin + (6 if part is None else soak_scaled(100))):
        with subtests.test(seed=seed):
            await Simulation(seed).run()
