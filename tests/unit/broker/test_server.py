"""``serve``: the whole daemon in one task, on a real directory, without signals."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.config import BrokerConfig
from seglog_broker.listeners import connection
from seglog_broker.listeners.acceptor import ListenError
from seglog_broker.runtime.interpreter import IMPORTED_LATER, build_of
from seglog_broker.runtime.offload import Arguments, Offload, T
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_broker.server import LoadProgress, Serving, serve
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.messages import CreateTopicRequest
from tests.unit.broker.listeners.fake_broker import Served, append_of, fetch_of

BATCH = encode_batch([(1_546_300_800_000, None, b"a record", ())])


async def started(
    nursery: trio.Nursery, folder: Path, scope: trio.CancelScope, offload: Offload | None = None
) -> Served:
    config = dataclasses.replace(BrokerConfig(), log_dir=str(folder), listeners=(), seglog_http_listen="")

    async def run(task_status: trio.TaskStatus[Serving]) -> None:
        with scope:
            await serve(
                config,
                fs=PosixFileSystem(),
                clock=SystemClock(),
                offload=offload or Offload(),
                listen="127.0.0.1:0",
                task_status=task_status,
            )

    serving: Serving = await nursery.start(run)
    return Served(serving.addresses[0], scope)


async def test_what_was_acked_is_fetched_also_after_a_stop_and_a_start(tmp_path: Path) -> None:
    for start in range(2):
        with capture_logs() as logged:
            async with trio.open_nursery() as nursery:
                served = await started(nursery, tmp_path / "data", trio.CancelScope())
                peer = await served.greeted()
                if start == 0:
                    await peer.send(1, CreateTopicRequest("commits", 1))
                    assert (await peer.receive()).header.get("error") is None
                    await peer.send(2, append_of(len(BATCH), "disk"), BATCH)
                    result = (await peer.receive()).header["partitions"][0]
                    assert (result["base_offset"], result["ack"]) == (0, "disk")
                await peer.send(3, fetch_of(0))
                frame = await peer.receive()
                assert bytes(frame.payload)[16:] == BATCH[16:]  # all but base offset, length and leader epoch
                served.stop()
                assert await peer.hung_up()
                await served.close_peers()
        events = [entry["event"] for entry in logged]
        assert events[0] == "broker_starting"
        assert logged[0]["build"] == build_of(connection.__file__)
        assert events[-2:] == ["broker_stopping", "broker_stopped"]
        assert "partition_recovered" not in events  # the stop was clean


async def test_an_append_under_way_at_the_stop_still_gets_its_ack(tmp_path: Path) -> None:
    """The connections are drained before the background tasks end: nobody's fsync is taken from under them."""
    async with trio.open_nursery() as nursery:
        served = await started(nursery, tmp_path / "data", trio.CancelScope())
        peer = await served.greeted()
        await peer.send(1, CreateTopicRequest("commits", 1))
        assert (await peer.receive()).header.get("error") is None
        await peer.send(2, fetch_of(0))  # answered when the append has been applied
        await peer.send(3, append_of(len(BATCH), "disk"), BATCH)
        answered = set(await peer.receive_ids(1))
        served.stop()
        answered |= set(await peer.receive_ids(1))
        assert answered == {2, 3}
        assert await peer.hung_up()
        await served.close_peers()


async def test_after_a_background_task_has_failed_the_connections_end_in_order(tmp_path: Path) -> None:
    fail = trio.Event()

    class Failing(Offload):
        async def maintenance(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
            if args not in [(name,) for name in IMPORTED_LATER]:
                return await super().maintenance(fn, *args)
            await fail.wait()
            raise ZeroDivisionError

    with capture_logs() as logged, pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            served = await started(nursery, tmp_path / "data", trio.CancelScope(), Failing())
            peer = await served.greeted()
            await peer.send(1, CreateTopicRequest("commits", 1))
            assert (await peer.receive()).header.get("error") is None
            fail.set()
            with trio.CancelScope(shield=True):
                assert await peer.hung_up()
                await served.close_peers()
    events = [entry["event"] for entry in logged]
    assert events[-2:] == ["broker_stopping", "broker_stopped"]
    assert not {"connection_crashed", "connections_cut"} & set(events)
    assert "stop_not_clean" not in events


async def test_a_stop_that_came_before_loading_closes_what_was_loaded(tmp_path: Path) -> None:
    config = dataclasses.replace(BrokerConfig(), log_dir=str(tmp_path / "data"), listeners=(), seglog_http_listen="")
    for _ in range(2):  # the second finds no lock
        with trio.CancelScope() as scope:
            scope.cancel()
            await serve(config, fs=PosixFileSystem(), clock=SystemClock(), offload=Offload(), listen="127.0.0.1:0")
        assert scope.cancelled_caught


async def test_what_keeps_it_from_starting_is_raised_as_it_is(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        served = await started(nursery, tmp_path / "data", trio.CancelScope())
        config = dataclasses.replace(
            BrokerConfig(), log_dir=str(tmp_path / "data"), listeners=(), seglog_http_listen=""
        )
        with pytest.raises(LogDirectoryError):
            await serve(config, fs=PosixFileSystem(), clock=SystemClock(), offload=Offload(), listen="127.0.0.1:0")
        config = dataclasses.replace(
            BrokerConfig(), log_dir=str(tmp_path / "other"), listeners=(), seglog_http_listen=""
        )
        for _ in range(2):  # the second time too: the directory was unlocked
            with pytest.raises(ListenError):
                await serve(config, fs=PosixFileSystem(), clock=SystemClock(), offload=Offload(), listen=served.address)
        await wait_all_tasks_blocked()
        served.stop()


async def test_a_stop_that_is_wanted_while_partitions_are_loaded_ends_that_in_good_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with trio.open_nursery() as nursery:
        served = await started(nursery, folder, trio.CancelScope())
        peer = await served.greeted()
        await peer.send(1, CreateTopicRequest("commits", 9))
        assert (await peer.receive()).header.get("error") is None
        served.stop()
        assert await peer.hung_up()
        await served.close_peers()
    config = dataclasses.replace(BrokerConfig(), log_dir=str(folder), listeners=(), seglog_http_listen="")
    asked = iter([False] * 4 + [True] * 9)
    problems: list[str] = []
    with capture_logs() as logged:
        await serve(
            config,
            fs=PosixFileSystem(),
            clock=SystemClock(),
            offload=Offload(),
            listen="127.0.0.1:0",
            problems=problems,
            stop_wanted=lambda: next(asked),
        )
    assert [entry["event"] for entry in logged] == ["broker_starting", "loading_stopped", "broker_stopped"]
    assert {name: logged[1][name] for name in ("partitions", "of")} == {"partitions": 4, "of": 9}
    assert not problems
    assert (folder / ".kafka_cleanshutdown").exists()
    async with trio.open_nursery() as nursery:
        with capture_logs() as logged:
            (await started(nursery, folder, trio.CancelScope())).stop()
    assert [entry["partitions"] for entry in logged if entry["event"] == "broker_ready"] == [9]
    assert "partition_recovered" not in [entry["event"] for entry in logged]


async def test_loading_logs_its_progress_every_few_seconds(mock_clock: MockClock) -> None:
    progress = LoadProgress("data", ServiceManager(), lambda: False)
    with capture_logs() as logged:
        for done in range(20):
            progress(done, 20)
            mock_clock.jump(0.5)
    assert [entry["partitions"] for entry in logged] == [6, 12, 18]
    assert {(entry["event"], entry["of"]) for entry in logged} == {("partitions_loading", 20)}
