"""Kafka's clients, as they come from their registries, against the Kafka listener; beside them seglog's own.

What one of them produces the other consumes: keys, values, headers and timestamps are the same bytes.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pytest

import seglog
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import BatchHeader, iter_batches
from tests.interop.client_programs import CODECS, PROGRAMS, Client, Program, client
from tests.interop.clients.conversation import Headers, Record
from tests.processes import Daemon, daemon

pytestmark = [pytest.mark.timeout(300)]

START_MS: Final = 1_700_000_000_000
WAITS: Final = 400
ACKS: Final = ("0", "1", "all")


def records(program: Program) -> list[Record]:
    """Four records with whatever is special, as far as the client can produce it."""
    null_header: Headers = [("none", None)] if program.produces_null_headers else []
    return [
        (b"key\x00\xff\n", bytes(range(256)) * 20, [("a", b"1"), ("a", b"2\x00\xff"), ("b", b"")], START_MS),
        (None, b"", null_header, START_MS + 1000),
        (b"", None, [], START_MS + 2000),
        ("ключ".encode(), b"value " * 1000, [], START_MS + 3000),
    ]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = ("listeners=PLAINTEXT://127.0.0.1:0", "group.initial.rebalance.delay.ms=0")
    given = [argument for setting in settings for argument in ("--set", setting)]
    with daemon(tmp_path_factory.mktemp("clients") / "data", *given) as running:
        yield running
        assert "connection_crashed" not in running.log_text()
        assert "Traceback" not in running.log_text()
        assert running.stop() == 0


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    assert isinstance(request.param, Program)
    return request.param


@pytest.fixture(scope="module")
def foreign(program: Program, broker: Daemon) -> Iterator[Client]:
    (ready,) = [event for event in broker.logged if event["event"] == "broker_ready"]
    with client(program, ready["kafka"]) as running:
        yield running


@contextmanager
def topic(broker: Daemon, name: str, partitions: int) -> Iterator[str]:
    with seglog.connect(broker.address) as own:
        own.create_topic(name, partitions, config={"retention.ms": -1})  # the records are years old
    yield name


def stored(broker: Daemon, name: str, partition: int) -> list[BatchHeader]:
    """The headers of the batches in a partition's only segment."""
    (path,) = (broker.directory / f"{name}-{partition}").glob("*.log")
    return [header for header, _ in iter_batches(memoryview(path.read_bytes()))]


def consumed_by_seglog(broker: Daemon, name: str, partition: int, count: int) -> list[seglog.Record]:
    """All records. What was produced with acks "0" may be on its way: ``count`` are waited for."""
    with seglog.connect(broker.address) as own:
        for _ in range(WAITS):
            ends = {offsets.partition: offsets.latest for offsets in own.offsets(name)}
            if ends[partition] >= count:
                break
            time.sleep(0.05)
        with own.consumer(name, partitions=[partition], start="earliest") as consumer:
            return list(consumer)


def assert_same(found: Sequence[seglog.Record], sent: Sequence[Record], program: Program) -> None:
    assert [record.offset for record in found] == list(range(len(sent)))
    for record, (key, value, headers, timestamp) in zip(found, sent, strict=True):
        assert (record.key, record.value, list(record.headers)) == (key, value, headers)
        assert record.timestamp == timestamp or not program.sets_timestamps


def test_what_it_produces_with_each_codec_and_acks_seglog_consumes(
    program: Program, foreign: Client, broker: Daemon
) -> None:
    sent = records(program)
    ways = [(codec, acks) for codec in program.codecs for acks in ACKS]
    with topic(broker, f"{program.name}-codecs", len(ways)) as name:
        for partition, (codec, acks) in enumerate(ways):
            offset = foreign.produce(name, partition, sent, acks=acks, codec=codec)
            assert offset == (None if acks == "0" else 0)
            assert_same(consumed_by_seglog(broker, name, partition, len(sent)), sent, program)
            batches = stored(broker, name, partition)
            assert Codec[codec.upper()] in {batch.codec for batch in batches}, codec
            assert all(batch.producer_id == -1 for batch in batches)


def test_an_idempotent_producer(program: Program, foreign: Client, broker: Daemon) -> None:
    sent = records(program)
    with topic(broker, f"{program.name}-idempotent", 1) as name:
        assert foreign.produce(name, 0, sent, acks="all", codec="none", idempotent=True) == 0
        assert foreign.produce(name, 0, sent, acks="all", codec="none", idempotent=True) == len(sent)
        assert_same(consumed_by_seglog(broker, name, 0, 2 * len(sent))[: len(sent)], sent, program)
        assert all(batch.producer_id >= 0 and batch.base_sequence >= 0 for batch in stored(broker, name, 0))


def test_kafkas_client_consumes_what_seglog_produces(program: Program, foreign: Client, broker: Daemon) -> None:
    """With each codec, from any offset."""
    if not program.consumes:
        pytest.skip(f"{program.name} is always a member of a group")
    sent = records(replace(program, produces_null_headers=True))
    with topic(broker, f"{program.name}-consumed", len(program.codecs)) as name:
        for partition, codec in enumerate(program.codecs):
            with (
                seglog.connect(broker.address) as own,
                own.producer(name, compression=codec) as producer,
            ):
                for key, value, headers, timestamp in sent:
                    producer.send(value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            assert [batch.codec for batch in stored(broker, name, partition)] == [Codec[codec.upper()]]
            expected = [(offset, *record) for offset, record in enumerate(sent)]
            assert foreign.consume(name, partition, 0, len(sent)) == expected
            assert foreign.consume(name, partition, 2, 2) == expected[2:]


def test_a_member_of_a_group_goes_on_where_the_last_one_was(program: Program, foreign: Client, broker: Daemon) -> None:
    if not program.joins_groups:
        pytest.skip(f"{program.name} is never a member of a group")
    group = f"{program.name}-readers"
    with topic(broker, f"{program.name}-group", 2) as name, seglog.connect(broker.address) as own:

        def produce(count: int) -> None:
            with own.producer(name) as producer:
                for number in range(2 * count):
                    producer.send(b"value", partition=number % 2)

        produce(3)
        places = foreign.read_as_member(name, group, 6)
        assert sorted(places) == [(partition, offset) for partition in range(2) for offset in range(3)]
        produce(2)
        places = foreign.read_as_member(name, group, 4)
        assert sorted(places) == [(partition, offset) for partition in range(2) for offset in (3, 4)]


def test_every_codec_is_tried() -> None:
    assert set(CODECS) == {codec.name.lower() for codec in Codec}
