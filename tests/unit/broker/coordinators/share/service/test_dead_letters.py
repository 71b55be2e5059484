"""Dead letters: what is written for records that were given up, and what becomes of those that cannot be written."""

import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.coordinators.share.in_flight import REJECT, RELEASE
from seglog_broker.coordinators.share.partition import DeadLetter, SharePartition
from seglog_broker.coordinators.share.runs import ARCHIVED, ARCHIVING
from seglog_broker.coordinators.share.service import dead_letters
from seglog_broker.coordinators.share.settings import ShareSettings
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
from tests.logs import flip_bit, read_all
from tests.unit.broker.coordinators.groups.service.running import NOW
from tests.unit.broker.coordinators.share.service.sharing import (
    GROUP,
    acknowledged,
    begun,
    key_of,
    known,
    log_of,
    sharing,
    taken,
)
from tests.unit.broker.storage.log.transactions import append_in_transaction, end_transaction

DEAD = "dlq.t"
NAME, COPY = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
OF_GROUP = {NAME: DEAD, COPY: "true"}
TOPIC: dict[str, ConfigValue] = {"errors.deadletterqueue.group.enable": "true"}
AUTO = "errors.deadletterqueue.auto.create.topics.enable=true"
RETRY = "seglog.share.dead.letter.retry.ms"


@asynccontextmanager
async def giving_up(
    fs: ForgetfulFileSystem,
    *flags: str,
    topic: Mapping[str, ConfigValue] | None = TOPIC,
    of_group: Mapping[str, str] = OF_GROUP,
) -> AsyncIterator[Broker]:
    """A broker with the topics ``t``, of three partitions, and, unless ``topic`` is None, DEAD of two."""
    async with sharing(fs, *flags, of_group=of_group) as broker:
        await broker.create_topic(CreateTopicRequest("t", 3))
        if topic is not None:
            await broker.create_topic(CreateTopicRequest(DEAD, 2, config=dict(topic)))
        yield broker


async def append(broker: Broker, *values: bytes, partition: int = 0, **arguments: Any) -> None:
    records = [(NOW - 1000, b"k", value, [("own", b"x")]) for value in values]
    await append_batch(broker, encode_batch(records, **arguments), "t", partition, ack="disk").wait()


async def give_up(broker: Broker, *ranges: tuple[int, int], partition: int = 0, kind: int = REJECT) -> SharePartition:
    """Have a member reject ranges of offsets; those before them it keeps."""
    machine = broker.share.runtime.machines.get(key_of(broker, partition).text)
    if machine is None:
        [machine] = await begun(broker, partition)
    end, first = ranges[-1][1] + 1, machine.next_offset()
    if first is not None and first < end:
        taken(broker, machine, end - first)
    for first, last in ranges:
        await acknowledged(broker, machine, first, last, kind)
    return machine


def runs(machine: SharePartition, state: int = ARCHIVED) -> list[tuple[int, int]]:
    return [(run.first, run.last) for run in machine.runs() if run.state == state]


def written(broker: Broker, partition: int = 0) -> list[Record]:
    return read_all(log_of(broker, partition, DEAD).log) if broker.partitions.find(DEAD, partition) else []


def letters(broker: Broker, partition: int = 0) -> list[tuple[int, bytes | None]]:
    """Offset and value of each dead letter."""
    origins = [(read_origin(record.headers), record.value) for record in written(broker, partition)]
    return [(origin.offset, value) for origin, value in origins if origin is not None]


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_letter_is_a_copy_with_headers(fs: ForgetfulFileSystem, codec: Codec) -> None:
    """It has key and value of the record, taken out of its batch, headers that say why, and the time of now."""
    async with giving_up(fs, of_group={**OF_GROUP, "share.delivery.count.limit": "2"}) as broker:
        await append(broker, b"0", b"1", b"2", b"3", partition=1, codec=codec)
        await append(broker, b"4", b"5", partition=1)
        machine = await give_up(broker, (1, 1), (3, 3), partition=1)
        for _ in range(2):
            await give_up(broker, (4, 5), partition=1, kind=RELEASE)
        await settled()
        assert [record[1:] for record in written(broker, 1)] == [
            (NOW, b"k", b"%d" % offset, tuple(DeadLetterOrigin("t", 1, offset, GROUP, *why).headers))
            for offset, why in [(1, (1, REJECTED)), (3, (1, REJECTED)), *((n, (2, COUNT_EXCEEDED)) for n in (4, 5))]
        ]
        assert runs(machine) == [(1, 1), (3, 3), (4, 5)]
        assert (broker.share.dead_letters.waiting, broker.share.dead_letters.written) == (0, 4)


async def test_letter_goes_to_the_partition_of_kafka(fs: ForgetfulFileSystem) -> None:
    """The number is that of the record's partition, modulo those of the topic for dead letters."""
    async with giving_up(fs) as broker:
        for partition in range(3):
            await append(broker, b"%d" % partition, partition=partition)
            await give_up(broker, (0, 0), partition=partition)
        await settled()
        assert [letters(broker, partition) for partition in (0, 1)] == [[(0, b"0"), (0, b"2")], [(0, b"1")]]


async def test_letter_without_a_copy_reads_no_record(fs: ForgetfulFileSystem) -> None:
    """Where the group asks for no copy, there are headers alone, also for what could not be read."""
    async with giving_up(fs, of_group={NAME: DEAD}) as broker:
        await give_up(broker, (7, 8))
        await settled()
        assert letters(broker) == [(7, None), (8, None)]


async def test_topic_is_made_as_kafka_makes_it(fs: ForgetfulFileSystem) -> None:
    """Where the broker may, it makes the topic, with these settings and ``num.partitions``."""
    async with giving_up(fs, AUTO, "num.partitions=2", topic=None) as broker:
        await append(broker, b"0")
        await give_up(broker, (0, 0))
        await settled()
        topic = broker.partitions.topic(DEAD)
        assert (topic.partitions, topic.config) == (2, {**TOPIC, "message.timestamp.type": "CreateTime"})
        assert letters(broker) == [(0, b"0")]


def set_group(broker: Broker, **settings: str) -> None:
    broker.reconfigure(broker.live_config.static, DynamicConfig(groups={GROUP: settings}))


async def make_topic(broker: Broker) -> None:
    await broker.create_topic(CreateTopicRequest(DEAD, 2, config=TOPIC))


async def enable_topic(broker: Broker) -> None:
    await broker.alter_topic(AlterTopicRequest(DEAD, config=TOPIC))


async def name_topic(broker: Broker) -> None:
    set_group(broker, **OF_GROUP)


@pytest.mark.parametrize(
    ("topic", "name", "reason", "mend"),
    [
        (None, DEAD, "there is no topic dlq.t: create it", make_topic),
        ({}, DEAD, "topic dlq.t takes no dead letters: set its errors.deadletterqueue.group.enable", enable_topic),
        (TOPIC, "dead", "topic dead is not one for dead letters: their names begin with dlq.", name_topic),
    ],
)
async def test_letter_that_cannot_be_written_waits(
    fs: ForgetfulFileSystem, topic: Mapping[str, str] | None, name: str, reason: str, mend: Any, autojump_clock: Any
) -> None:
    """Its record stays as it is, the reason is told once, and it is written when it can be, after a pause."""
    async with giving_up(fs, topic=topic, of_group={**OF_GROUP, NAME: name}) as broker:
        await append(broker, b"0", b"1")
        with capture_logs() as logged:
            machine = await give_up(broker, (1, 1))
            await trio.sleep(100)
            [held_up] = broker.share.dead_letters.held_up()
            assert held_up[:4] == (machine.partition, 1, 1, 100)
            assert held_up.reason.startswith(reason)
            await mend(broker)
            assert (runs(machine, ARCHIVING), broker.share.dead_letters.waiting) == ([(1, 1)], 1)
            await trio.sleep(dead_letters.RETRY_SECONDS_MAX)
        assert (runs(machine), letters(broker)) == ([(1, 1)], [(1, b"1")])
        assert not list(broker.share.dead_letters.held_up())
        events = [(each["event"], each.get("reason", "")[:20]) for each in logged if each["event"].startswith("dead")]
        assert events == [("dead_letters_held_up", reason[:20]), ("dead_letters_go_on", "")]


async def test_pauses_between_tries_double(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """A letter that cannot be written is tried again after a second, two, and so on, up to half a minute."""
    async with giving_up(fs, topic=None) as broker:
        tried: set[float] = set()

        def settings(group: str) -> ShareSettings:
            tried.add(trio.current_time() - began)
            return broker.share.settings.of(group)

        broker.share.dead_letters._settings = settings
        began = trio.current_time()
        await give_up(broker, (0, 0))
        await trio.sleep(95)
        assert [round(each) for each in sorted(tried)] == [0, 1, 3, 7, 15, 31, 61, 91]


async def test_old_letters_are_given_up_by_name(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """After the time of the key records are archived without letters, with a line that names them."""
    async with giving_up(fs, f"{RETRY}=60000", topic=None) as broker:
        with capture_logs() as logged:
            machine = await give_up(broker, (3, 3), (5, 6))
            await trio.sleep(50)
            await give_up(broker, (8, 8))
            await trio.sleep(20)
            assert (runs(machine), runs(machine, ARCHIVING)) == ([(3, 3), (5, 6)], [(8, 8)])
            assert (broker.share.dead_letters.waiting, broker.share.dead_letters.given_up) == (1, 3)
        [line] = [each for each in logged if each["event"] == "dead_letters_given_up"]
        assert line.pop("reason").startswith("there is no topic dlq.t")
        line.pop("event")
        facts = {"group": GROUP, "topic": "t", "partition": 0, "offsets": ["3-3", "5-6"]}
        assert line == {**facts, "log_level": "warning"}


async def nothing(_broker: Broker) -> None:
    pass


async def without_topic(broker: Broker) -> None:
    set_group(broker)


async def delete_records(broker: Broker) -> None:
    known(broker).note_log_start(4)


@pytest.mark.parametrize(
    ("flags", "change", "told"),
    [
        ((f"{RETRY}=0",), nothing, ["given_up"]),
        ((), without_topic, ["held_up", "given_up", "go_on"]),
        ((), delete_records, ["held_up", "given_up", "go_on"]),
    ],
    ids=["as Kafka", "no topic", "behind the start"],
)
async def test_letters_are_given_up_at_once(
    fs: ForgetfulFileSystem, flags: Sequence[str], change: Any, told: list[str], autojump_clock: Any
) -> None:
    """That is where the key is 0, as in Kafka, where the group has no topic any more, and behind the start offset."""
    async with giving_up(fs, *flags, topic=None) as broker:
        with capture_logs() as logged:
            machine = await give_up(broker, (2, 3))
            await settled()
            await change(broker)
            await trio.sleep(5)
        events = [each["event"] for each in logged if each["event"].startswith("dead")]
        assert events == [f"dead_letters_{each}" for each in told]
        assert runs(machine, ARCHIVING) == []
        assert (broker.share.dead_letters.waiting, broker.share.dead_letters.given_up) == (0, 2)


@pytest.mark.parametrize(
    ("operation", "path"), [("pwritev", f"{DEAD}-0"), ("pread", "t-0")], ids=["full", "unreadable"]
)
async def test_letters_wait_for_the_disk(
    fs: ForgetfulFileSystem, operation: str, path: str, autojump_clock: Any
) -> None:
    """While there is no room for a letter, or a record cannot be read now, its record waits."""
    async with giving_up(fs) as broker:
        await append(broker, b"0", b"1", b"2")
        path = f"/data/{path}/00000000000000000000.log"
        fs.inject(Fault(operation, path, errno.ENOSPC if operation == "pwritev" else errno.EIO, sticky=True))
        machine = await give_up(broker, (1, 2))
        await trio.sleep(5)
        [held_up] = broker.share.dead_letters.held_up()
        assert (runs(machine, ARCHIVING), held_up.records) == ([(1, 2)], 2)
        fs.heal()
        await trio.sleep(60)
        assert (runs(machine), letters(broker)) == ([(1, 2)], [(1, b"1"), (2, b"2")])


async def test_copy_that_is_too_large_is_left_out(fs: ForgetfulFileSystem) -> None:
    """The headers say where the record is; the copies of others fit into as few batches as they can."""
    async with giving_up(fs, topic={**TOPIC, "max.message.bytes": "2000"}) as broker:
        await append(broker, b"0", b"1" * 3000, b"2", b"3" * 1600)
        await give_up(broker, (0, 3))
        await settled()
        assert letters(broker) == [(0, b"0"), (1, None), (2, b"2"), (3, b"3" * 1600)]


async def test_record_that_cannot_be_read_has_a_letter_of_headers(fs: ForgetfulFileSystem) -> None:
    """Deleted, damaged or never there: the letter says what was lost."""
    async with giving_up(fs) as broker:
        for number in range(4):
            await append(broker, b"%d" % number)
        await broker.truncate(TruncateRequest([TruncatePartition("t", 0, 1)]))
        log = log_of(broker).log
        flip_bit(fs, log.active.log_path, log.active.size * 5 // 8)  # in the third of four batches
        await give_up(broker, (0, 5))
        await settled()
        assert letters(broker) == [(0, None), (1, b"1"), (2, None), (3, b"3"), (4, None), (5, None)]


async def test_marker_of_a_transaction_has_no_letter(fs: ForgetfulFileSystem) -> None:
    """It was given up with the records before it, and never was a record."""
    async with giving_up(fs) as broker:
        await append(broker, b"0")
        append_in_transaction(log_of(broker).log, 1)
        end_transaction(log_of(broker).log, 1, "COMMIT")
        machine = await give_up(broker, (1, 2))
        await settled()
        assert (runs(machine), letters(broker)) == ([(1, 2)], [(1, b"v")])


async def test_letter_that_is_refused_holds_up_no_other(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """A letter that its topic refuses, here for its key, is alone in its batch from the second try on."""
    async with giving_up(fs, topic={**TOPIC, "cleanup.policy": "compact"}) as broker:
        await append(broker, b"0", b"1")
        machine = await give_up(broker, (1, 2))  # of the last there is no record, so its letter has no key
        await trio.sleep(3)
        assert (runs(machine), runs(machine, ARCHIVING)) == ([(1, 1)], [(2, 2)])
        [held_up] = broker.share.dead_letters.held_up()
        assert (held_up.first_offset, held_up.records) == (2, 1)


async def test_what_is_gone_meanwhile_is_forgotten(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """Letters go with the share partition of a group, or topic; another topic of that name lends no copy."""
    async with giving_up(fs, topic=None) as broker:
        await append(broker, b"0")
        await give_up(broker, (0, 0))
        await settled()
        await broker.share.delete(GROUP, key_of(broker).topic_id, [0])
        machine = await give_up(broker, (1, 2))
        await trio.sleep(5)
        assert broker.share.dead_letters.waiting == 2, "those of the share partition that was made again"
        await broker.delete_topic(DeleteTopicRequest("t"))
        await broker.create_topic(CreateTopicRequest("t", 3))
        await append(broker, b"of", b"another", b"topic")
        await make_topic(broker)
        await trio.sleep(60)
        assert (runs(machine), letters(broker), broker.share.dead_letters.waiting) == ([], [], 0)


async def test_work_of_a_round_is_bounded(fs: ForgetfulFileSystem) -> None:
    """Letters and bytes of a round have limits; share partitions share rounds, and none waits for all of another."""
    async with giving_up(fs) as broker:
        machines = await begun(broker, 0, 1, 2)
        add = broker.share.dead_letters.add
        appended: list[tuple[int, int]] = []

        def append_counted(requests: Sequence[AppendRequest], payloads: Sequence[memoryview]) -> PendingAppends:
            if not appended:
                add(DeadLetter(machines[0].partition, 700, 700, 1, REJECTED))  # it comes in the middle of a round
            appended.append((requests[0].partitions[0].partition, len(payloads[0])))
            return broker.append(requests, payloads)

        broker.share.dead_letters._append = append_counted
        for machine, last in zip(machines, (624, 0, 0), strict=True):
            add(DeadLetter(machine.partition, 0, last, 1, REJECTED))
        await settled()
        assert (len(letters(broker, 0)), len(letters(broker, 1))) == (627, 1)
        assert [partition for partition, _ in appended] == [0, 1, 0, 0, 0]
        appended.clear()
        await append(broker, *[b"v" * 100_000] * 30, codec=Codec.ZSTD)
        add(DeadLetter(machines[0].partition, 0, 29, 1, REJECTED))
        await settled()
        assert len(letters(broker, 0)) == 657 + 1
        assert len(appended) == 3
        assert all(size < dead_letters.BYTES_A_ROUND + 200_000 for _, size in appended)


async def test_bug_delays_letters_and_loses_none(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """A round that raises what nobody expected is told, and comes again."""
    async with giving_up(fs) as broker:
        await append(broker, b"0")
        broker.share.dead_letters._settings = dict[str, ShareSettings]().__getitem__
        with capture_logs() as logged:
            await give_up(broker, (0, 0))
            await settled()
        assert "dead_letters_crashed" in [each["event"] for each in logged]
        broker.share.dead_letters._settings = broker.share.settings.of
        await trio.sleep(dead_letters.RETRY_SECONDS_MAX + 1)
        assert letters(broker) == [(0, b"0")]


async def test_no_kill_loses_a_letter(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """After a kill or a power cut anywhere, what was rejected with an answer has a letter, or two, and is archived.

    What was not written as rejected has none.
    """
    images: list[ForgetfulFileSystem] = []
    async with giving_up(fs, AUTO, topic=None) as broker:
        await append(broker, b"0", b"1", b"2")
        taken(broker, (await begun(broker))[0], 5)

        def keep_images(_: object) -> None:
            images.extend([fs.found_after(POWER_LOSS), fs.found_after(PROCESS_KILL)])

        fs.on_operation = keep_images
        await give_up(broker, (1, 2))
        answered = len(images)
        await trio.sleep(1)
        fs.on_operation = None
        keep_images(None)
        assert len(letters(broker)) == 2
    assert len(images) > answered + 10
    for number, image in enumerate(images):
        async with sharing(image, AUTO, of_group=OF_GROUP) as broker:
            await trio.sleep(1)
            if number < answered and not list(known(broker).runs()):
                assert not written(broker)
            else:
                assert runs(known(broker)) == [(1, 2)]
                assert sorted(letters(broker)) in ([(1, b"1"), (2, b"2")], [*[(1, b"1")] * 2, *[(2, b"2")] * 2])


async def test_failed_writes_of_the_state_make_no_more_letters(fs: ForgetfulFileSystem, autojump_clock: Any) -> None:
    """Letters that are decided again, as all are after a failed write, are those that wait already."""
    async with giving_up(fs, topic=None) as broker:
        await give_up(broker, (1, 1), (2, 2))
        await trio.sleep(5)
        fs.inject(Fault("pwritev", "__share_group_state-0/00000000000000000000.log", errno.EIO))
        with pytest.raises(CoordinatorNotAvailableError):
            await give_up(broker, (4, 4))
        await trio.sleep(30)
        assert broker.share.dead_letters.waiting == 3
        await make_topic(broker)
        await trio.sleep(30)
        assert [offset for offset, _ in letters(broker)] == [1, 2, 4]


async def test_letters_that_wait_are_bounded(fs: ForgetfulFileSystem) -> None:
    """They count as records in flight, so that the group gets no more than its limit of these."""
    of_group = {**OF_GROUP, "share.partition.max.record.locks": "100"}
    async with giving_up(fs, topic=None, of_group=of_group) as broker:
        [machine] = await begun(broker)
        while (offset := machine.next_offset()) is not None:
            await give_up(broker, (offset, offset))
        await settled()
        assert broker.share.dead_letters.waiting == 100
