"""``seglog.testing.Broker`` as a test uses it: its life, its faults, and what it leaves behind."""

import gc
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import structlog
import trio

import seglog
from seglog.testing import Broker, BrokerStoppedError, NotArrivedError, NotPossibleError
from seglog_protocol.errors import (
    ClientClosedError,
    CorruptRecordError,
    DiskFullError,
    InvalidConfigError,
    SeglogError,
    TopicExistsError,
)
from tests.support import each_case, numbers_of

KINDS = pytest.mark.parametrize("memory", [pytest.param(False, id="on disk"), pytest.param(True, id="in memory")])


def values(broker: Broker, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


# --- Its life ---------------------------------------------------------------------------------------------------------


@KINDS
def test_it_serves_both_wires_on_ports_of_its_own(memory: bool) -> None:
    with Broker(memory=memory) as broker:
        assert broker.produce("t", b"one", "two", key="k")[1].offset == 1
        with seglog.connect(broker.address) as client:
            assert client.broker.broker.startswith("seglogd/")
        [first, second] = broker.records("t")
        assert (first.value, second.value, second.key) == (b"one", b"two", b"k")
        assert broker.address != broker.kafka_address
        assert Path(broker.directory).exists() != memory
    assert not broker.is_running
    assert memory or not Path(broker.directory).exists()


@KINDS
def test_after_a_stop_or_a_crash_it_goes_on_with_its_data_at_its_addresses(memory: bool) -> None:
    with Broker(memory=memory) as broker:
        places = broker.address, broker.kafka_address
        broker.produce("t", b"one")
        broker.stop()
        with pytest.raises(BrokerStoppedError, match="start"):
            broker.produce("t", b"two")
        broker.start()
        broker.produce("t", b"two")
        broker.crash()
        broker.start()
        broker.restart()
        assert values(broker) == [b"one", b"two"]
        assert (broker.address, broker.kafka_address) == places
        events = [line["event"] for line in broker.log]
        assert events.count("broker_stopped") == 3
        assert events.count("partition_recovered") == 1


def test_what_a_power_cut_takes_is_what_was_never_synced() -> None:
    with Broker(memory=True) as broker:
        broker.produce("t", b"synced", ack="disk")
        broker.produce("t", b"written", ack="os")
        broker.power_cut()
        broker.start()
        assert values(broker) == [b"synced"]


def test_a_power_cut_is_the_same_again_with_the_same_seed() -> None:
    def found(seed: int) -> list[object]:
        after: list[object] = []
        with Broker(memory=True, seed=seed) as broker:
            broker.create_topic("t")
            for cut in range(4):
                for number in range(5):
                    broker.produce("t", b"%d of %d" % (number, cut), timestamp=time.time_ns() // 1_000_000)
                broker.power_cut(random=True)
                broker.start()
                try:
                    after.append(values(broker))
                except CorruptRecordError as error:  # a hole before what stayed
                    after.append(error.facts)
        return after

    first = [found(seed) for seed in range(3)]
    assert len(set(map(str, first))) > 1
    assert found(2) == first[2]


def test_keys_of_the_configuration_are_keywords(tmp_path: Path) -> None:
    with Broker(num_partitions=3, directory=tmp_path / "d", config={"log.retention.ms": 7_000}) as broker:
        broker.produce("t", b"one")
        described = broker.client.describe_topic("t")
        assert described.partitions == 3
        assert described.config is not None
        assert described.config["retention.ms"].value == "7000"
        broker.create_topic("u", 2, retention_ms=1_000)
    assert (tmp_path / "d" / "t-0").is_dir(), "a directory of the caller's stays"


# --- Nothing stays, and nothing changes -------------------------------------------------------------------------------


def _state_of_the_process() -> dict[str, Any]:
    os.umask(mask := os.umask(0o077))
    return {
        "threads": threading.enumerate(),
        "descriptors": len(list(Path("/dev/fd").iterdir())),
        "signals": [signal.getsignal(number) for number in signal.valid_signals() if number < signal.SIGRTMIN],
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "umask": mask,
        "structlog": structlog.get_config(),
        "collector": (gc.get_threshold(), list(gc.callbacks), gc.isenabled()),
        "warnings": list(warnings.filters),
        "excepthook": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "environment": dict(os.environ),
    }


@contextmanager
def unchanged() -> Iterator[None]:
    with Broker(memory=True) as broker:  # what is imported on first use is imported now
        broker.produce("t", b"one")
        broker.records("t")
        broker.jump_clock(1)
    gc.collect()
    before = _state_of_the_process()
    yield
    gc.collect()
    after = _state_of_the_process()
    # What other tests have left idle may end meanwhile, as trio's threads do.
    assert set(after.pop("threads")) <= set(before.pop("threads"))
    assert after == before


@KINDS
def test_it_leaves_the_process_as_it_was(memory: bool, capfd: pytest.CaptureFixture[str]) -> None:
    with unchanged():
        for _ in range(3):
            with Broker(memory=memory) as broker:
                broker.produce("t", b"one")
                assert values(broker) == [b"one"]
        with Broker(memory=memory) as broker:
            broker.crash()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("error", [AssertionError, KeyboardInterrupt, SystemExit])
def test_a_test_that_fails_leaves_nothing(error: type[BaseException]) -> None:
    def fail() -> None:
        with Broker() as broker, seglog.connect(broker.address):
            broker.produce("t", b"one")
            raise error

    with unchanged(), pytest.raises(error):
        fail()


@each_case("end", ["crash", "stop", "close", "power_cut"])
@each_case("hold", ["slow_disk", "full_disk"])
def test_what_waits_for_an_ack_does_not_hold_up_the_end(hold: str, end: str) -> None:
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            broker.produce("t", b"two", ack="disk")
        except BrokerStoppedError as error:
            failures.append(error)

    with unchanged(), Broker(memory=True) as broker:
        broker.produce("t", b"one", ack="disk")
        getattr(broker, hold)(*[3600] * (hold == "slow_disk"))
        thread = threading.Thread(target=produce)
        thread.start()
        while numbers_of(broker.client)["requests_append_total"] < 2:
            time.sleep(0.01)
        getattr(broker, end)()
        thread.join()
    assert len(failures) == 1


def test_an_interrupt_while_the_thread_starts_that_ends_it_is_passed_on_and_it_ends() -> None:
    def interrupt(frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code is threading.Event.wait.__code__:  # start() waits for the thread to run
            sys.settrace(None)
            raise KeyboardInterrupt

    with unchanged():
        broker = Broker()
        broker.start()
        traced, interval = sys.gettrace(), sys.getswitchinterval()
        sys.setswitchinterval(10)  # the thread does not run until this one waits
        try:
            sys.settrace(interrupt)
            with pytest.raises(KeyboardInterrupt):
                broker.stop()
        finally:
            sys.settrace(traced)
            sys.setswitchinterval(interval)
        assert not broker.is_running
        broker.close()


def test_one_that_nobody_closed_says_so_and_is_closed() -> None:
    with unchanged():
        broker = Broker()
        broker.start()
        broker.produce("t", b"one")
        directory = Path(broker.directory)
        with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031
            del broker
            gc.collect()
        assert not directory.exists()


# --- What cannot be ---------------------------------------------------------------------------------------------------


def test_a_place_that_is_taken_is_an_error_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()

    def refused(said: str, **arguments: Any) -> None:
        with pytest.raises(SeglogError, match=said), Broker(**arguments):
            raise AssertionError

    with Broker() as broker, unchanged():
        refused(r"Cannot listen on .*choose another by Broker\(listen=…\)", listen=broker.address)
        refused(r"Cannot listen on .*choose another by Broker\(kafka=…\)", kafka=broker.kafka_address)
        refused(r"in use by another broker.*Broker\(directory=…\)", directory=broker.directory)
        refused(r"photos.*Broker\(directory=…\)", directory=tmp_path)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"log_retention_mss": 1}, TypeError, "did you mean 'log_retention_ms'"),
    ({"log_retention_ms": "soon"}, InvalidConfigError, "log.retention.ms = soon"),
    ({"config": {"log.retention.mss": 1}}, TypeError, "did you mean 'log.retention.ms'"),
    ({"memory": True, "process": True}, TypeError, "memory=True"),
    ({"memory": True, "directory": "d"}, TypeError, "memory=True"),
    ({"directory": ""}, ValueError, "leave it out"),
    ({"directory": 3}, TypeError, "int"),
    ({"seed": "x"}, TypeError, "whole number"),
    ({"config": 3}, TypeError, "mapping"),
    ({"num_partitions": 1, "config": {"num.partitions": 2}}, TypeError, "given twice"),
]


def test_a_wrong_argument_is_one_sentence() -> None:
    with unchanged():
        for arguments, error, said in WRONG:
            with pytest.raises(error, match=said):
                Broker(**arguments)


def test_what_needs_another_kind_of_broker_says_which() -> None:
    with Broker() as broker:
        with pytest.raises(NotPossibleError, match="memory=True"):
            broker.power_cut()
        with pytest.raises(NotPossibleError, match="process=True"):
            _ = broker.pid
        with pytest.raises(ValueError, match="wall_only"):
            broker.jump_clock(-1)
        broker.create_topic("t")
        with pytest.raises(TopicExistsError):
            broker.create_topic("t")
    with pytest.raises(BrokerStoppedError, match="closed"):
        broker.start()


# --- What tests ask ---------------------------------------------------------------------------------------------------


def test_waiting_returns_what_has_come_and_says_what_has_not() -> None:
    with Broker(memory=True) as broker:
        with pytest.raises(NotArrivedError, match="no topic 't'"):
            broker.wait_for("t", 1, 0.01)
        later = threading.Timer(0.1, lambda: broker.produce("t", b"a", b"b" * 500, key="k"))
        later.start()
        assert len(broker.wait_for("t", 2)) == 2
        later.join()
        assert [record.value for record in broker.wait_for("t", where=lambda record: record.value == b"a")] == [b"a"]
        with pytest.raises(NotArrivedError) as failed:
            broker.wait_for("t", 3, 0.01, where=lambda record: record.value == b"a")
        text = str(failed.value)
        assert "2 records" in text
        assert "1 of those" in text
        assert "key b'k'" in text
        assert "(500 bytes)" in text


def test_waiting_goes_on_over_a_restart_and_a_crash_and_ends_when_it_is_closed() -> None:
    with Broker(memory=True) as broker:
        found: list[object] = []

        def wait(count: int) -> None:
            try:
                found.append(len(broker.wait_for("t", count, 60)))
            except BrokerStoppedError as error:
                found.append(str(error))

        threads = [threading.Thread(target=wait, args=(count,)) for count in (3, 4)]
        for thread in threads:
            thread.start()
        broker.produce("t", b"one", ack="disk")
        broker.restart()
        broker.produce("t", b"two", ack="os")
        broker.crash()
        broker.start()
        broker.produce("t", b"three", headers=[("a", b"b")])
        threads[0].join()
        broker.close()
        threads[1].join()
    assert found == [3, "this broker is closed: make another one"]


def test_what_tests_ask_meets_no_fault() -> None:
    with Broker(memory=True) as broker:
        broker.produce("t", b"one")
        client = broker.client
        broker.refuse(cut=True)
        broker.delay(3600)
        for api in ("append", "fetch", "offsets"):
            broker.fail_next(api, DiskFullError, 10)
        broker.lose_next_ack("t")
        broker.produce("t", b"two")
        assert values(broker) == [b"one", b"two"]
        assert broker.client is client
        assert client.ping().problems == []
        assert len(broker.pending_faults) == 6


FAULTS: list[Callable[[Broker], object]] = [
    lambda broker: broker.cut_connections("under test"),
    lambda broker: broker.lose_next_ack("t"),
    lambda broker: broker.fail_next("append", DiskFullError, 2),
    lambda broker: broker.fail_next("fetch", "OUT_OF_RESOURCES"),
    lambda broker: broker.rebalance("g"),
    lambda broker: broker.expire_session("g", broker.wait_for_group("g").members[0].member_id),
]


def test_a_program_goes_on_after_each_fault_that_passes() -> None:
    """What a fault does on either wire stands in the tests of ``seglog_broker.testing``."""
    with Broker(memory=True) as broker, seglog.connect(broker.address, client_id="under test") as client:
        broker.create_topic("t")
        received: list[bytes | None] = []
        came = threading.Condition()
        consumer = client.consumer("t", group="g", session_timeout=2)

        def follow() -> None:
            with suppress(ClientClosedError):
                for record in consumer:
                    with came:
                        received.append(record.value)
                        came.notify()

        thread = threading.Thread(target=follow)
        thread.start()
        with client.producer("t", linger_ms=0) as producer:
            for number, fault in enumerate([lambda _: None, *FAULTS]):
                fault(broker)
                value = b"%d" % number
                producer.send(value).result(60)
                with came:
                    assert came.wait_for(partial(received.__contains__, value), 60), number
        assert broker.cut_connections("under test") >= 2
        consumer.close()
        thread.join()
        assert values(broker) == [b"%d" % number for number in range(len(FAULTS) + 1)]
        assert broker.pending_faults == []


def test_records_whose_ack_is_lost_are_there_and_come_again_without_idempotence() -> None:
    with Broker(memory=True) as broker, seglog.connect(broker.address) as client:
        broker.create_topic("t")
        broker.lose_next_ack("t")
        with client.producer("t", idempotent=False) as producer:
            producer.send("one").result()
        assert values(broker) == [b"one", b"one"]


# --- Disk and time ----------------------------------------------------------------------------------------------------


@KINDS
def test_with_a_full_disk_appends_wait_and_then_arrive(memory: bool) -> None:
    with Broker(memory=memory) as broker:
        broker.produce("t", b"one")
        broker.full_disk()
        assert any("full" in problem for problem in broker.client.ping().problems)
        with seglog.connect(broker.address) as client, client.producer("t", linger_ms=0) as producer:
            delivery = producer.send(b"two")
            with pytest.raises(TimeoutError):
                delivery.result(0.3)
            assert values(broker) == [b"one"]
            broker.full_disk(False)
            assert delivery.result(60).offset == 1


@KINDS
def test_a_slow_disk_holds_up_acks_and_nothing_else(memory: bool) -> None:
    with Broker(memory=memory) as broker:
        broker.produce("t", b"one", ack="disk")
        broker.slow_disk(3600)
        with seglog.connect(broker.address) as client, client.producer("t", ack="disk", linger_ms=0) as producer:
            delivery = producer.send(b"two")
            broker.wait_for("t", 2)
            with pytest.raises(TimeoutError):
                delivery.result(0.05)
            broker.slow_disk(0)
            assert broker.produce("t", b"three", ack="os")[0].offset == 2
            broker.jump_clock(3600)
            delivery.result(60)
        broker.produce("t", b"four", ack="disk")


@KINDS
def test_time_that_passes_expires_records_and_a_wrong_clock_does_not(memory: bool) -> None:
    with Broker(memory=memory) as broker:
        broker.create_topic("t", retention_ms=60_000, segment_ms=30_000)
        broker.produce("t", b"old")
        broker.jump_clock(86_400, wall_only=True)
        broker.jump_clock(400)  # the next check, and the one after it
        assert values(broker) == [b"old"]
        broker.jump_clock(-86_400, wall_only=True)
        broker.jump_clock(7 * 86_400)
        assert values(broker) == []
        broker.produce("t", b"new")
        assert values(broker) == [b"new"]


def test_what_is_produced_after_a_jump_has_the_time_of_the_broker() -> None:
    with Broker(memory=True) as broker:
        broker.create_topic("t", retention_ms=3_600_000)
        broker.jump_clock(8 * 86_400)
        [receipt] = broker.produce("t", b"one")
        assert not receipt.expired_on_arrival
        broker.jump_clock(1_800)
        assert values(broker) == [b"one"]


def test_a_century_passes_at_once_and_no_more_than_that() -> None:
    with Broker(memory=True) as broker:
        broker.produce("t", b"one")
        broker.jump_clock(100 * 365 * 86_400)
        assert values(broker) == []
        for wrong, error in (
            (1e12, ValueError),
            (float("nan"), ValueError),
            ("1", TypeError),
            (float("inf"), ValueError),
        ):
            with pytest.raises(error):
                broker.jump_clock(wrong)  # type: ignore[arg-type]
        for slow, error in ((-1, ValueError), ("s", TypeError), (None, TypeError)):
            with pytest.raises(error):
                broker.slow_disk(slow)  # type: ignore[arg-type]
        broker.produce("t", b"two", ack="disk")


# --- From an event loop -----------------------------------------------------------------------------------------------


async def test_trio_goes_on_while_it_is_awaited() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.sleep(0.01)

    with unchanged():
        async with trio.open_nursery() as nursery, Broker(memory=True) as broker:
            nursery.start_soon(count_turns)
            with pytest.raises(NotArrivedError):
                await broker.wait_for("t", 2, 0.2)
            nursery.cancel_scope.cancel()
        assert turns > 5


async def test_a_call_that_is_cancelled_leaves_no_thread() -> None:
    with unchanged():
        async with Broker(memory=True) as broker:
            with trio.move_on_after(0.05):
                await broker.wait_for("t", timeout=3600)


# --- Groups -----------------------------------------------------------------------------------------------------------


def test_a_group_is_waited_for_until_its_members_share_the_partitions() -> None:
    with Broker(memory=True) as broker, seglog.connect(broker.address) as client:
        broker.create_topic("t", 2)
        with pytest.raises(NotArrivedError, match=r"no group 'g' .* 1 member that shares its partitions was wait"):
            broker.wait_for_group("g", timeout=0.01)
        consumer = client.consumer("t", group="g", session_timeout=2)

        def follow() -> None:
            with suppress(ClientClosedError):
                list(consumer)

        thread = threading.Thread(target=follow)
        thread.start()
        first = broker.wait_for_group("g").group
        assert first.state == "Stable"
        with pytest.raises(NotArrivedError, match="1 member; 2 members that share its partitions were waited for"):
            broker.wait_for_group("g", 2, timeout=0.01)
        with pytest.raises(
            NotArrivedError, match="; 1 member that shares its partitions, after generation 99, was wait"
        ):
            broker.wait_for_group("g", timeout=0.01, after=99)
        broker.rebalance("g")
        again = broker.wait_for_group("g", after=first.generation).group
        assert again.generation > first.generation
        [member] = again.members
        broker.expire_session("g", member.member_id)
        assert broker.wait_for_group("g", after=again.generation).members[0].member_id != member.member_id
        consumer.close()
        thread.join()
