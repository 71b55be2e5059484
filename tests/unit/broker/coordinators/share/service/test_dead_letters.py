"""Dead letters: what is written for records that were given up, and what becomes of those that cannot be written."""

import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.share.in_flight import REJECT
from seglog_broker.coordinators.share.partition import DeadLetter, SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.runs import ARCHIVED
from seglog_broker.coordinators.share.service import dead_letters
from seglog_broker.coordinators.share.service.dead_letters import DeadLetters
from seglog_broker.coordinators.share.settings import ShareSettings, share_settings
from seglog_broker.coordinators.state_machine import Now
from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, ForgetfulFileSystem
from seglog_broker.testing.forgetful_script import Fault
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.dead_letters import COUNT_EXCEEDED, REJECTED, DeadLetterOrigin, read_origin
from seglog_protocol.errors import CoordinatorNotAvailableError
from seglog_protocol.messages import (
    AlterTopicRequest,
    AppendRequest,
    ConfigValue,
    CreateTopicRequest,
    DeleteTopicRequest,
    TruncatePartition,
    TruncateRequest,
)
from seglog_protocol.records import Record
from tests.appends import append_batch
from tests.logs import ManualClock, flip_bit, read_all
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker
from tests.unit.broker.coordinators.share.service.sharing import acknowledged, begun, known, sharing, taken
from tests.unit.broker.storage.log.transactions import append_in_transaction, end_transaction

SOURCE, DEAD = "jobs", "dlq.jobs"
GROUP = "workers"
TOPIC: dict[str, ConfigValue] = {"errors.deadletterqueue.group.enable": "true"}


class Machine:
    """A share partition whose records are archived."""

    def __init__(self, key: PartitionKey, is_durable: Callable[[], bool]) -> None:
        self.key = key.text
        self.start_offset = 0
        self.archived: list[tuple[int, int]] = []
        self._is_durable = is_durable

    def end_archiving(self, first: int, last: int, now: Now) -> None:
        assert self._is_durable()
        self.archived.append((first, last))


class Runtime:
    """As far as dead letters use it."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.carried_out: list[str] = []

    def now(self) -> Now:
        return Now(0, NOW)

    def carry_out(self, key: str, *, is_urgent: bool) -> None:
        assert not is_urgent
        self.carried_out.append(key)


class Letters:
    """A broker with the topic SOURCE, of three partitions, and the task that is tested."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.runtime = Runtime()
        self.own: dict[str, dict[str, str]] = {
            GROUP: {"errors.deadletterqueue.topic.name": DEAD, "errors.deadletterqueue.copy.record.enable": "true"}
        }
        self.tested = DeadLetters(
            *broker.common,
            cast("CoordinatorRuntime[SharePartition]", self.runtime),
            lambda group: share_settings(self.own.get(group, {}), broker.config),
            broker.append,
            broker.create_topic,
        )

    def reject(
        self, *offsets: int, partition: int = 0, group: str = GROUP, count: int = 1, cause: str = REJECTED
    ) -> Machine:
        """Give up records, each by itself; the share partition."""
        return self.give_up(
            *[(offset, offset) for offset in offsets], partition=partition, group=group, count=count, cause=cause
        )

    def give_up(
        self, *ranges: tuple[int, int], partition: int = 0, group: str = GROUP, count: int = 1, cause: str = REJECTED
    ) -> Machine:
        key = PartitionKey(group, id_bytes(self.broker.partitions.topic(SOURCE).id), partition)
        machine = self.runtime.machines.get(key.text)
        if machine is None:
            machine = self.runtime.machines[key.text] = Machine(key, self._is_durable)
        for first, last in ranges:
            self.tested.add(DeadLetter(key, first, last, count, cause))
        return machine

    def _is_durable(self) -> bool:
        logs = [partition.log for partition in self.broker.partitions.values() if partition.topic.startswith("dlq")]
        return all(log.durable_end_offset == log.log_end_offset for log in logs)

    def written(self, partition: int = 0, topic: str = DEAD) -> list[Record]:
        return read_all(self.broker.partitions.partition(topic, partition).log)

    def short(self, partition: int = 0) -> list[tuple[int, bytes | None]]:
        """Offset and value of what is written."""
        origins = [(read_origin(record.headers), record.value) for record in self.written(partition)]
        return [(origin.offset, value) for origin, value in origins if origin is not None]


@asynccontextmanager
async def dead_letters_of(
    fs: ForgetfulFileSystem, *flags: str, topic: Mapping[str, ConfigValue] | None = TOPIC
) -> AsyncIterator[Letters]:
    """With ``topic`` for dead letters, unless that is None."""
    broker = open_broker(fs, ManualClock(NOW), *flags)
    await broker.create_topic(CreateTopicRequest(SOURCE, 3))
    if topic is not None:
        await broker.create_topic(CreateTopicRequest(DEAD, 2, config=dict(topic)))
    letters = Letters(broker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(letters.tested.run)
        yield letters
        nursery.cancel_scope.cancel()
    broker.close()


async def append(letters: Letters, *values: bytes, partition: int = 0, **arguments: Any) -> None:
    records = [(NOW - 1000, b"k", value, [("own", b"x")]) for value in values]
    await append_batch(letters.broker, encode_batch(records, **arguments), SOURCE, partition, ack="disk").wait()


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_letter_is_a_copy_with_headers(fs: ForgetfulFileSystem, codec: Codec) -> None:
    """It has key and value of the record, taken out of its batch, headers that say why, and the time of now."""
    async with dead_letters_of(fs) as letters:
        await append(letters, b"0", b"1", b"2", b"3", partition=1, codec=codec)
        await append(letters, b"4", b"5", partition=1)
        machine = letters.reject(3, partition=1)
        letters.give_up((4, 5), partition=1, count=5, cause=COUNT_EXCEEDED)
        letters.reject(1, partition=1)
        await settled()
        assert [record[1:] for record in letters.written(1)] == [
            (NOW, b"k", b"%d" % offset, tuple(DeadLetterOrigin(SOURCE, 1, offset, GROUP, *why).headers))
            for offset, why in [
                (1, (1, REJECTED)),
                (3, (1, REJECTED)),
                (4, (5, COUNT_EXCEEDED)),
                (5, (5, COUNT_EXCEEDED)),
            ]
        ]
        assert machine.archived == [(1, 1), (3, 3), (4, 5)]
        assert letters.runtime.carried_out == [machine.key]
        assert (letters.tested.waiting, letters.tested.written) == (0, 4)


async def test_letter_goes_to_the_partition_of_kafka(fs: ForgetfulFileSystem) -> None:
    """The number is that of the record's partition, modulo those of the topic for dead letters."""
    async with dead_letters_of(fs) as letters:
        for partition in range(3):
            await append(letters, b"%d" % partition, partition=partition)
            letters.reject(0, partition=partition)
        await settled()
        assert [value for _, value in letters.short(0)] == [b"0", b"2"]
        assert [value for _, value in letters.short(1)] == [b"1"]


async def test_letter_without_a_copy_reads_no_record(fs: ForgetfulFileSystem) -> None:
    """Where the group asks for no copy, there are headers alone, also for what could not be read."""
    async with dead_letters_of(fs) as letters:
        letters.own[GROUP]["errors.deadletterqueue.copy.record.enable"] = "false"
        letters.give_up((7, 8))
        await settled()
        assert letters.short() == [(7, None), (8, None)]


async def test_topic_is_made_as_kafka_makes_it(fs: ForgetfulFileSystem) -> None:
    """Where the broker may, it makes the topic, with these settings and ``num.partitions``."""
    flags = "errors.deadletterqueue.auto.create.topics.enable=true", "num.partitions=2"
    async with dead_letters_of(fs, *flags, topic=None) as letters:
        await append(letters, b"0")
        letters.reject(0)
        await settled()
        topic = letters.broker.partitions.topic(DEAD)
        assert (topic.partitions, topic.config) == (2, {**TOPIC, "message.timestamp.type": "CreateTime"})
        assert letters.short() == [(0, b"0")]


async def make_topic(letters: Letters) -> None:
    await letters.broker.create_topic(CreateTopicRequest(DEAD, 2, config=TOPIC))


async def enable_topic(letters: Letters) -> None:
    await letters.broker.alter_topic(AlterTopicRequest(DEAD, config=TOPIC))


async def rename_topic(letters: Letters) -> None:
    letters.own[GROUP]["errors.deadletterqueue.topic.name"] = DEAD


@pytest.mark.parametrize(
    ("topic", "name", "reason", "mend"),
    [
        (None, DEAD, "there is no topic dlq.jobs: create it", make_topic),
        ({}, DEAD, "topic dlq.jobs takes no dead letters: set its errors.deadletterqueue.group.enable", enable_topic),
        (TOPIC, "dead", "topic dead is not one for dead letters: their names begin with dlq.", rename_topic),
    ],
)
async def test_letter_that_cannot_be_written_waits(
    fs: ForgetfulFileSystem,
    topic: Mapping[str, ConfigValue] | None,
    name: str,
    reason: str,
    mend: Any,
    autojump_clock: Any,
) -> None:
    """Its record stays as it is, the reason is told once, and it is written when it can be, after a growing pause."""
    async with dead_letters_of(fs, topic=topic) as letters:
        letters.own[GROUP]["errors.deadletterqueue.topic.name"] = name
        await append(letters, b"0", b"1")
        with capture_logs() as logged:
            machine = letters.reject(1)
            await trio.sleep(100)
            [held_up] = letters.tested.held_up()
            assert held_up[0].text == machine.key
            assert held_up[1:4] == (1, 1, 100)
            assert held_up.reason.startswith(reason)
            await mend(letters)
            assert (machine.archived, letters.tested.waiting) == ([], 1)
            await trio.sleep(dead_letters.RETRY_SECONDS_MAX)
        assert (machine.archived, letters.short()) == ([(1, 1)], [(1, b"1")])
        assert not list(letters.tested.held_up())
        events = [(each["event"], each.get("reason", "")[:20]) for each in logged if each["event"].startswith("dead")]
        assert events == [("dead_letters_held_up", reason[:20]), ("dead_letters_go_on", "")]


async def test_pauses_between_tries_double(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """A letter that cannot be written is tried again after a second, two, and so on, up to half a minute."""
    async with dead_letters_of(fs, topic=None) as letters:
        tried: set[float] = set()
        began = trio.current_time()

        def settings(group: str) -> ShareSettings:
            tried.add(trio.current_time() - began)
            return share_settings(letters.own[group], letters.broker.config)

        letters.tested._settings = settings
        letters.reject(0)
        await trio.sleep(95)
        assert sorted(tried) == [0, 1, 3, 7, 15, 31, 61, 91]


RETRY = "seglog.share.dead.letter.retry.ms"


async def test_old_letters_are_given_up_by_name(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """After the time of the key records are archived without letters, with a line that names them."""
    async with dead_letters_of(fs, f"{RETRY}=60000", topic=None) as letters:
        with capture_logs() as logged:
            machine = letters.reject(3, 5, 6, cause=COUNT_EXCEEDED)
            await trio.sleep(50)
            letters.reject(7)
            await trio.sleep(20)
            assert machine.archived == [(3, 3), (5, 5), (6, 6)]
            assert (letters.tested.waiting, letters.tested.given_up) == (1, 3)
        [line] = [each for each in logged if each["event"] == "dead_letters_given_up"]
        assert {name: line[name] for name in ("group", "topic", "partition", "offsets", "log_level")} == {
            "group": GROUP,
            "topic": SOURCE,
            "partition": 0,
            "offsets": ["3-3", "5-5", "6-6"],
            "log_level": "warning",
        }
        assert line["reason"].startswith("there is no topic dlq.jobs")


async def without_retry(letters: Letters, _machine: Machine) -> None:
    letters.broker.live_config.replace(replace(letters.broker.config, seglog_share_dead_letter_retry_ms=0))


async def without_topic(letters: Letters, _machine: Machine) -> None:
    del letters.own[GROUP]["errors.deadletterqueue.topic.name"]


async def left_behind(_letters: Letters, machine: Machine) -> None:
    machine.start_offset = 4


@pytest.mark.parametrize("change", [without_retry, without_topic, left_behind])
async def test_letters_are_given_up_at_once(fs: ForgetfulFileSystem, change: Any) -> None:
    """That is where the key is 0, as in Kafka, where the group has no topic, and behind the start offset."""
    async with dead_letters_of(fs, topic=None) as letters:
        machine = letters.give_up((2, 3))
        await change(letters, machine)
        with capture_logs() as logged:
            await settled()
        assert [each["event"] for each in logged] == ["dead_letters_given_up"]
        assert (machine.archived, letters.tested.waiting, letters.tested.given_up) == ([(2, 3)], 0, 2)


async def test_letters_wait_for_room_on_the_disk(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """On a full disk nothing is archived, and all of it has letters when there is room."""
    async with dead_letters_of(fs) as letters:
        await append(letters, b"0", b"1", b"2")
        fs.limit_free_bytes(0)
        letters.broker.directory.space.refresh()
        machine = letters.give_up((0, 2))
        await trio.sleep(5)
        [held_up] = letters.tested.held_up()
        assert (machine.archived, held_up.records) == ([], 3)
        fs.limit_free_bytes(None)
        letters.broker.directory.space.refresh()
        await trio.sleep(5)
        assert (machine.archived, len(letters.short())) == ([(0, 2)], 3)


async def test_copy_that_is_too_large_is_left_out(fs: ForgetfulFileSystem) -> None:
    """The headers say where the record is; the copies of others fit into as few batches as they can."""
    async with dead_letters_of(fs, topic={**TOPIC, "max.message.bytes": "2000"}) as letters:
        await append(letters, b"0", b"1" * 3000, b"2", b"3" * 1600)
        machine = letters.give_up((0, 3))
        await settled()
        assert letters.short() == [(0, b"0"), (1, None), (2, b"2"), (3, b"3" * 1600)]
        assert machine.archived == [(0, 0), (1, 2), (3, 3)]


async def test_record_that_cannot_be_read_has_a_letter_of_headers(fs: ForgetfulFileSystem) -> None:
    """Deleted, damaged or never written (a power cut took it): the letter says what was lost."""
    async with dead_letters_of(fs) as letters:
        for number in range(4):
            await append(letters, b"%d" % number, partition=2)
        await letters.broker.truncate(TruncateRequest([TruncatePartition(SOURCE, 2, 1)]))
        log = letters.broker.partitions.partition(SOURCE, 2).log
        flip_bit(fs, log.active.log_path, log.active.size * 5 // 8)  # in the third of four batches
        machine = letters.give_up((0, 5), partition=2)
        await settled()
        assert letters.short() == [(0, None), (1, b"1"), (2, None), (3, b"3"), (4, None), (5, None)]
        assert machine.archived == [(0, 5)]


async def test_marker_of_a_transaction_has_no_letter(fs: ForgetfulFileSystem) -> None:
    """It was given up with the records before it, and never was a record."""
    async with dead_letters_of(fs) as letters:
        log = letters.broker.partitions.partition(SOURCE, 0).log
        append_in_transaction(log, 1)
        end_transaction(log, 1, "COMMIT")
        machine = letters.give_up((0, 1))
        await settled()
        assert letters.short() == [(0, b"v")]
        assert sorted(machine.archived) == [(0, 0), (1, 1)]


async def test_letter_that_is_refused_holds_up_no_other(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """A letter that its topic refuses, here for its key, is alone in its batch from the second try on."""
    async with dead_letters_of(fs, topic={**TOPIC, "cleanup.policy": "compact"}) as letters:
        await append(letters, b"0", b"1")
        machine = letters.give_up((0, 2))  # of the last there is no record, so its letter has no key
        await trio.sleep(3)
        assert (machine.archived, letters.tested.waiting) == ([(0, 0), (1, 1)], 1)
        [held_up] = letters.tested.held_up()
        assert (held_up.first_offset, held_up.records) == (2, 1)


async def test_source_that_cannot_be_read_now_is_waited_for(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """An error of the disk is no reason to write a letter without its copy."""
    async with dead_letters_of(fs) as letters:
        await append(letters, b"0")
        path = letters.broker.partitions.partition(SOURCE, 0).log.active.log_path
        fs.inject(Fault("pread", path, errno.EIO, sticky=True))
        machine = letters.reject(0)
        await trio.sleep(2)
        assert (machine.archived, letters.tested.waiting) == ([], 1)
        fs.heal()
        await trio.sleep(5)
        assert letters.short() == [(0, b"0")]


async def test_what_is_gone_meanwhile_is_forgotten(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """Letters go with the share partition of a group, or topic; another topic of that name lends no copy."""
    async with dead_letters_of(fs, topic=None) as letters:
        machine = letters.reject(0)
        await trio.sleep(2)
        await letters.broker.delete_topic(DeleteTopicRequest(SOURCE))
        await letters.broker.create_topic(CreateTopicRequest(SOURCE, 3))
        await append(letters, b"of another topic")
        await make_topic(letters)
        await trio.sleep(30)
        assert [held_up.reason for held_up in letters.tested.held_up()] == ["the topic of the records was deleted"]
        del letters.runtime.machines[machine.key]
        await trio.sleep(30)
        assert (machine.archived, letters.short(), letters.tested.waiting) == ([], [], 0)
        assert not list(letters.tested.held_up())


async def test_share_partition_that_was_made_again_has_its_own_letters(fs: ForgetfulFileSystem) -> None:
    """Those of the one before it, of the same key, are forgotten."""
    async with dead_letters_of(fs) as letters:
        await append(letters, b"0", b"1")
        machine = letters.reject(0)
        letters.runtime.machines.clear()
        again = letters.reject(1)
        await settled()
        assert (machine.archived, again.archived, letters.short()) == ([], [(1, 1)], [(1, b"1")])


async def test_work_of_a_round_is_bounded(fs: ForgetfulFileSystem) -> None:
    """Letters and bytes of a round have limits; share partitions share rounds, and none waits for all of another."""
    async with dead_letters_of(fs) as letters:
        appended: list[tuple[int, int]] = []

        def append_counted(requests: Sequence[AppendRequest], payloads: Sequence[memoryview]) -> PendingAppends:
            if not letters.tested.written:
                letters.reject(700)
            appended.append((len(requests[0].partitions), len(payloads[0])))
            return letters.broker.append(requests, payloads)

        letters.tested._append = append_counted
        for partition in range(3):
            letters.give_up((0, 624 if partition == 0 else 0), partition=partition)
        await settled()
        assert len(letters.short(0)) + len(letters.short(1)) == 628
        assert [count for count, _ in appended] == [1, 3, 1]
        appended.clear()
        await append(letters, *[b"v" * 100_000] * 30, codec=Codec.ZSTD)
        letters.give_up((0, 29))
        await settled()
        assert len(letters.short(0)) + len(letters.short(1)) == 658
        assert len(appended) == 3
        assert all(size < dead_letters.BYTES_A_ROUND + 200_000 for _, size in appended)


async def test_bug_delays_letters_and_loses_none(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """A round that raises what nobody expected is told, and comes again."""
    async with dead_letters_of(fs) as letters:
        await append(letters, b"0")
        settings = letters.tested._settings
        letters.tested._settings = dict[str, ShareSettings]().__getitem__
        with capture_logs() as logged:
            letters.reject(0)
            await settled()
        assert [each["event"] for each in logged] == ["dead_letters_crashed"]
        letters.tested._settings = settings
        await trio.sleep(dead_letters.RETRY_SECONDS_MAX + 1)
        assert letters.short() == [(0, b"0")]


# --- In the broker ----------------------------------------------------------------------------------------------------

AUTO = "errors.deadletterqueue.auto.create.topics.enable=true"
OF_GROUP = {"errors.deadletterqueue.topic.name": DEAD, "errors.deadletterqueue.copy.record.enable": "true"}


def dead(broker: Broker) -> list[int]:
    """The offsets that have letters, one for each letter."""
    partition = broker.partitions.find(DEAD, 0)
    origins = [read_origin(record.headers) for record in read_all(partition.log)] if partition is not None else []
    return sorted(origin.offset for origin in origins if origin is not None)


async def test_no_kill_loses_a_letter(fs: ForgetfulFileSystem) -> None:
    """After a kill or a power cut anywhere, what was rejected with an answer has a letter, or two, and is archived.

    What was not written as rejected has none.
    """
    images: list[ForgetfulFileSystem] = []
    async with sharing(fs, AUTO, of_group=OF_GROUP) as broker:
        [machine] = await begun(broker)
        taken(broker, machine, 5)
        fs.on_operation = lambda _: images.extend([fs.found_after(POWER_LOSS), fs.found_after(PROCESS_KILL)])
        await acknowledged(broker, machine, 1, 2, REJECT)
        answered = len(images)
        await settled()
        fs.on_operation = None
        assert dead(broker) == [1, 2]
    assert len(images) > answered + 10
    for number, image in enumerate(images):
        async with sharing(image, AUTO, of_group=OF_GROUP) as broker:
            await settled()
            state = [(run.first, run.last, run.state) for run in known(broker).runs()]
            if number < answered and state == []:
                assert dead(broker) == []
            else:
                assert state == [(1, 2, ARCHIVED)], number
                assert dead(broker) in ([1, 2], [1, 1, 2, 2])


async def test_failed_writes_of_the_state_make_no_more_letters(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """Letters that are decided again, as all are after a failed write, are those that wait already."""
    async with sharing(fs, of_group=OF_GROUP) as broker:
        [machine] = await begun(broker)
        taken(broker, machine, 6)
        await acknowledged(broker, machine, 1, 1, REJECT)
        await acknowledged(broker, machine, 2, 2, REJECT)
        await trio.sleep(5)
        fs.inject(Fault("pwritev", "__share_group_state-0/00000000000000000000.log", errno.EIO))
        with pytest.raises(CoordinatorNotAvailableError):
            await acknowledged(broker, machine, 4, 4, REJECT)
        await trio.sleep(30)
        assert broker.share.dead_letters.waiting == 3
        await broker.create_topic(CreateTopicRequest(DEAD, 1, config=TOPIC))
        await trio.sleep(30)
        assert dead(broker) == [1, 2, 4]
        assert broker.share.dead_letters.waiting == 0


async def test_letters_that_wait_are_bounded(fs: ForgetfulFileSystem) -> None:
    """They count as records in flight, so that the group gets no more than its limit of these."""
    async with sharing(fs, of_group={**OF_GROUP, "share.partition.max.record.locks": "100"}) as broker:
        [machine] = await begun(broker)
        while machine.next_offset() is not None:
            [acquired] = taken(broker, machine)
            await acknowledged(broker, machine, acquired.first, acquired.last, REJECT)
        await settled()
        assert broker.share.dead_letters.waiting == 100
