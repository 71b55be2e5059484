"""The task of the continuous backup: what its process is told, what becomes of it, and what is known of the backup."""

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.backup.agent_messages import Changes, ChangesWanted, Stop, Trouble
from seglog_broker.tasks.backups import PAUSE_SECONDS_MAX, Backups
from tests.unit.broker.tasks.agents import TO, backing_up, partitions_of
from tests.unit.broker.tasks.living_broker import append, delete, log_of, with_topic

ONLY: set[str] = set()
FLAGS = (TO, "seglog.backup.lag.ms=5000", "seglog.backup.keep.ms=60000", "seglog.backup.bytes.per.second=7")


@pytest.fixture
async def broker(empty: Broker) -> Broker:
    await with_topic(empty)
    return empty


async def test_the_process_is_told_what_the_configuration_says(broker: Broker) -> None:
    async with backing_up(broker) as started:
        begin = (await started.agent()).begin
        told = begin.log_dir, begin.place, begin.lag_ms, begin.keep_ms, begin.bandwidth, begin.lease_ms
        assert told == ("/data", "s3://bucket/backup", 5000, 60_000, 7, 0)
        assert begin.cluster_id == broker.directory.cluster_id
        assert len(begin.directory_id) == len(begin.cluster_id)


async def test_the_log_says_where_to_and_when_the_first_copy_is_there(broker: Broker) -> None:
    with capture_logs() as logged:
        async with backing_up(broker) as started:
            agent = await started.agent()
            await agent.publish(7)
            await agent.publish(8)
    place = "s3://bucket/backup"
    assert [line for line in logged if line["event"].startswith("backup_")] == [
        {"event": "backup_started", "log_level": "info", "place": place, "lag_ms": 5000, "lease": False},
        {"event": "backup_published", "log_level": "info", "place": place, "id": "id-1", "bytes": 7},
    ]


async def test_until_something_is_published_the_loss_is_counted_from_the_start(broker: Broker) -> None:
    assert broker.backup is not None
    async with backing_up(broker) as started:
        await started.agent()
        await trio.sleep(60)
        assert broker.backup.lost_seconds() == 60


async def test_a_cut_has_what_has_changed_since_the_one_before(broker: Broker) -> None:
    await with_topic(broker, "other")
    async with backing_up(broker) as started:
        agent = await started.agent()
        first = await agent.cut()
        assert first.is_whole
        assert first.registry is not None
        assert partitions_of(first) == {("t", 0): (0, 0), ("other", 0): (0, 0)}
        append(broker, 2)
        second = await agent.cut()
        assert (second.number, second.is_whole, second.registry) == (2, False, None)
        assert partitions_of(second) == {("t", 0): (2, 512)}
        assert second.partitions[0].bases is None, "it has them"
        assert log_of(broker).durable_end_offset == 2, "a cut is durable"
        assert partitions_of(await agent.cut(is_whole=True)).keys() == partitions_of(first).keys()


async def test_it_is_told_which_files_were_replaced_since_a_cut(broker: Broker) -> None:
    async with backing_up(broker) as started:
        agent = await started.agent()
        await agent.cut()
        await delete(broker)
        await with_topic(broker)
        agent.say(ChangesWanted())
        changes = await agent.told()
        assert isinstance(changes, Changes)
        assert {*changes.changed} == {("t", 0)}


async def test_one_that_died_is_started_again_later_each_time_and_gets_everything(broker: Broker) -> None:
    progress = broker.backup
    assert progress is not None
    async with backing_up(broker) as started:
        died: list[float] = []
        for number in range(8):
            agent = await started.agent(number)
            assert (await agent.cut()).number == 1
            agent.die()
            await wait_all_tasks_blocked()
            [problem] = progress.problems()
            assert problem.sentence.endswith("the process ended with status 1. Its last words")
            died.append(trio.current_time())
        agent = await started.agent(8)
        pauses = [each.started_at - at for each, at in zip(started.agents[1:], died, strict=True)]
        assert pauses == [1, 2, 4, 8, 16, 32, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX]
        await agent.publish()
        agent.die()
        at = trio.current_time()
        assert (await started.agent(9)).started_at - at == 1, "it had been of use"


async def test_one_that_says_what_nobody_understands_is_replaced(broker: Broker) -> None:
    async with backing_up(broker) as started:
        agent = await started.agent()
        agent.say_bytes(b"{}")
        await started.agent(1)
        assert agent.has_ended


async def test_a_stop_has_the_last_cut_published(broker: Broker) -> None:
    progress = broker.backup
    assert progress is not None
    async with backing_up(broker) as started, trio.open_nursery() as nursery:
        agent = await started.agent()
        await agent.publish()
        append(broker)
        nursery.start_soon(agent.obey_stop)
        await progress.finish()
        assert progress.status().lost_records == 0
        assert len(started.agents) == 1, "no other one is started"


async def test_a_stop_does_not_wait_for_ever(broker: Broker) -> None:
    progress = broker.backup
    assert progress is not None
    async with backing_up(broker) as started:
        agent = await started.agent()
        began = trio.current_time()
        await progress.finish()
        assert trio.current_time() - began == 5
        assert await agent.told() == Stop()
    assert agent.has_ended


async def test_what_would_be_lost_is_what_came_after_the_published_cut(broker: Broker) -> None:
    progress = broker.backup
    assert progress is not None
    async with backing_up(broker) as started:
        agent = await started.agent()
        append(broker, 3)
        cut = await agent.cut()
        await trio.sleep(2)
        status = broker.hello().backup
        assert status is not None
        assert (status.lost_records, status.lost_bytes, status.published_id) == (3, 768, None)
        append(broker)
        agent.say_bytes(b'{"type":"published","number":1,"id":"one","written":900}')
        await wait_all_tasks_blocked()
        status = broker.hello().backup
        assert status is not None
        assert (status.lost_records, status.lost_bytes, status.lost_ms) == (1, 256, 2000)
        assert (status.published_id, status.published_ms) == ("one", cut.moment_ms)
        assert (status.written_bytes, status.appended_bytes) == (900, 1024)
        await agent.publish()
        await trio.sleep(60)
        status = broker.hello().backup
        assert status is not None
        assert (status.lost_records, status.lost_ms) == (0, 0)
        append(broker)
        assert progress.lost_seconds() == 0, "it is as old as the record at most"
        await trio.sleep(6)
        assert broker.hello().problem_kinds == ["backup"], "more than seglog.backup.lag.ms"


async def test_trouble_is_a_problem_until_it_ends(broker: Broker) -> None:
    async with backing_up(broker) as started:
        agent = await started.agent()
        agent.say(Trouble("the place is away"))
        await wait_all_tasks_blocked()
        assert broker.hello().problems == ["the backup to s3://bucket/backup is held up: the place is away"]
        agent.say(Trouble(None))
        await wait_all_tasks_blocked()
        assert broker.hello().problems == []


async def test_without_a_place_nothing_runs(broker: Broker) -> None:
    await Backups(*broker.common, None).run()
