"""What clients of either face read at each isolation of a directory with transactions that Kafka wrote."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

import seglog
import seglog.trio
from seglog.arrow import read_arrow
from seglog.cli.parameters import ISOLATIONS as TYPED
from seglog.trio import raw as trio_raw
from seglog_protocol.errors import UnsupportedVersionError
from seglog_protocol.isolation import ISOLATIONS, Isolation
from seglog_protocol.messages import Request
from tests.clients.fake_broker import Answer, fake_broker
from tests.interop.golden import load_case, unpack
from tests.processes import Daemon, daemon
from tests.processes import seglog as seglog_command

TOPIC, STABLE, END = "ledger", 162, 192
PARTITIONS = [("ledger", 0), ("ledger", 1), ("version-2", 0)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("transactions") / "data"
    unpack(load_case("transactions"), directory)
    with daemon(directory) as broker:
        yield broker


def expected(topic: str, partition: int, isolation: Isolation) -> list[int]:
    """The offsets that Kafka's own consumer was given."""
    answers = load_case("transactions").answered[f"{topic}-{partition}"]
    told = answers["read_committed"] if isolation == "read_committed" else answers
    return [row[0] for row in told["records"]["all"]]


class Blocking:
    """What is asked of the blocking face."""

    def __init__(self, address: str) -> None:
        self.address = address

    def offsets_read(self, topic: str, **options: Any) -> tuple[list[int], dict[int, int], dict[int, int], list[Any]]:
        """Offsets of the records, then positions, offsets behind by what was answered, and gaps."""
        with seglog.connect(self.address) as client, client.consumer(topic, **options) as consumer:
            found = [record.offset for record in consumer]
            assert {number: lag.records for number, lag in consumer.lag().items()} == consumer.records_behind()
            return found, consumer.positions(), consumer.records_behind(), list(consumer.gaps)

    def fetched(self, start: int, end: int, isolation: Isolation) -> list[int]:
        """Offsets of a range of batches as they are."""
        with seglog.connect(self.address) as client:
            batches = seglog.raw.fetch(client, TOPIC, 0, start, end, isolation=isolation)
            return [record.offset for batch in batches for record in batch.records()]

    def client_says(self, ask: Callable[[Any], Any]) -> Any:
        """The answer to one question."""
        with seglog.connect(self.address) as client:
            return ask(client)


class Trio:
    """The same of the face on trio."""

    def __init__(self, address: str) -> None:
        self.address = address

    def offsets_read(self, topic: str, **options: Any) -> tuple[list[int], dict[int, int], dict[int, int], list[Any]]:
        async def read() -> tuple[list[int], dict[int, int], dict[int, int], list[Any]]:
            async with seglog.trio.connect(self.address) as client, client.consumer(topic, **options) as consumer:
                found = [record.offset async for record in consumer]
                lags = await consumer.lag()
                assert {number: lag.records for number, lag in lags.items()} == consumer.records_behind()
                return found, consumer.positions(), consumer.records_behind(), list(consumer.gaps)

        return trio.run(read)

    def fetched(self, start: int, end: int, isolation: Isolation) -> list[int]:
        async def read() -> list[int]:
            async with (
                seglog.trio.connect(self.address) as client,
                trio_raw.fetch(client, TOPIC, 0, start, end, isolation=isolation) as batches,
            ):
                return [record.offset async for batch in batches for record in batch.records()]

        return trio.run(read)

    def client_says(self, ask: Callable[[Any], Any]) -> Any:
        async def answered() -> Any:
            async with seglog.trio.connect(self.address) as client:
                return await ask(client)

        return trio.run(answered)


Face = Blocking | Trio


@pytest.fixture(params=[Blocking, Trio])
def face(request: pytest.FixtureRequest, running: Daemon) -> Face:
    made: Face = request.param(running.address)
    return made


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("topic", "partition"), PARTITIONS)
@pytest.mark.parametrize("partition_bytes", [1, 1 << 20])
def test_a_consumer_reads_what_kafkas_reads(
    face: Face, topic: str, partition: int, isolation: Isolation, partition_bytes: int
) -> None:
    found, positions, behind, gaps = face.offsets_read(
        topic, partitions=[partition], isolation=isolation, partition_bytes=partition_bytes
    )
    assert found == expected(topic, partition, isolation)
    if (topic, partition) == (TOPIC, 0):
        assert positions == {0: STABLE if isolation == "read_committed" else END}
    assert behind == {partition: 0}
    assert not gaps


def test_without_a_choice_everything_is_read(face: Face) -> None:
    assert len(face.offsets_read(TOPIC, partitions=[0])[0]) == 177


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_member_of_a_group_reads_the_same(face: Face, isolation: Isolation) -> None:
    group = f"{type(face).__name__}-{isolation}"
    found, positions, _, _ = face.offsets_read(TOPIC, group=group, follow=False, isolation=isolation)
    both = [*expected(TOPIC, 0, isolation), *expected(TOPIC, 1, isolation)]
    assert sorted(found) == sorted(both)
    assert positions == {0: STABLE if isolation == "read_committed" else END, 1: 138}


@pytest.mark.parametrize("start", [0, 30, 75, 150, STABLE, STABLE + 5])
def test_from_the_middle_of_a_transaction_on_nothing_else_is_read(face: Face, start: int) -> None:
    found, _, behind, gaps = face.offsets_read(TOPIC, partitions=[0], start=start, isolation="read_committed")
    assert found == [offset for offset in expected(TOPIC, 0, "read_committed") if offset >= start]
    assert behind == {0: 0}
    assert not gaps


def test_latest_is_the_last_stable_offset(face: Face) -> None:
    for isolation, end in (("read_committed", STABLE), ("read_uncommitted", END)):
        _, positions, _, _ = face.offsets_read(TOPIC, partitions=[0], start="latest", isolation=isolation)
        assert positions == {0: end}


def test_offsets_end_at_the_last_stable_offset(face: Face) -> None:
    def latest(**options: Any) -> Any:
        return face.client_says(lambda client: client.offsets(TOPIC, partitions=[0], **options))[0]

    assert (latest().latest, latest().last_stable) == (END, STABLE)
    assert latest(isolation="read_committed").latest == STABLE


def test_no_time_finds_a_record_of_an_open_transaction(face: Face) -> None:
    def found(time: int, isolation: Isolation) -> int | None:
        def ask(client: Any) -> Any:
            return client.offsets(TOPIC, f"@{time}", partitions=[0], isolation=isolation)

        offset: int | None = face.client_says(ask)[0].offset
        return offset

    for time, *_ in load_case("transactions").answered["ledger-0"]["offsets_for_times"]:
        everything = found(time, "read_uncommitted")
        stable = None if everything is None or everything >= STABLE else everything
        assert found(time, "read_committed") == stable


def test_lag_is_counted_to_the_last_stable_offset_and_a_position_beyond_it_is_none_of_another_log(face: Face) -> None:
    def lag(position: int, **options: Any) -> Any:
        return face.client_says(lambda client: client.lag(TOPIC, {0: position}, **options))[0]

    assert lag(100).records == END - 100
    assert lag(100, isolation="read_committed").records == STABLE - 100
    beyond = lag(STABLE + 5, isolation="read_committed")
    assert (beyond.records, beyond.is_beyond_end) == (0, False)
    assert lag(END + 5, isolation="read_committed").is_beyond_end


def test_a_range_of_batches_is_read_at_either_isolation(face: Face) -> None:
    for isolation in ISOLATIONS:
        wanted = [offset for offset in expected(TOPIC, 0, isolation) if 20 <= offset < 120]  # type: ignore[arg-type]
        assert face.fetched(20, 120, isolation) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.consumer(TOPIC, isolation="committed"),
        lambda client: client.consumer(TOPIC, group="g", isolation="committed"),
        lambda client: client.offsets(TOPIC, isolation="committed"),
        lambda client: client.lag(TOPIC, {0: 1}, isolation="committed"),
    ],
)
def test_what_is_no_isolation_is_refused(face: Face, ask: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"^isolation is 'read_uncommitted' or 'read_committed', not 'committed'$"):
        face.client_says(ask)


@pytest.mark.parametrize("face_of", [Blocking, Trio])
def test_a_broker_of_an_older_version_is_not_read_as_if_all_were_committed(face_of: Callable[[str], Face]) -> None:
    def script(request: Request, _payload: memoryview) -> Answer | None:
        if getattr(request, "isolation", None) is None:
            return None
        return UnsupportedVersionError(f"{request.api} is known in older versions only")

    with fake_broker() as broker:
        broker.script = script
        with pytest.raises(UnsupportedVersionError):
            face_of(broker.address).offsets_read("t", isolation="read_committed")


# --- Arrow and the command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_arrow_reads_the_same_from_a_broker(running: Daemon, isolation: Isolation) -> None:
    for columns in (["offset"], ["offset", "value"]):
        with read_arrow(running.address, TOPIC, partitions=[0], columns=columns, isolation=isolation) as reader:
            assert reader.read_all()["offset"].to_pylist() == expected(TOPIC, 0, isolation)
            assert reader.positions() == {0: STABLE if isolation == "read_committed" else END}
            assert not list(reader.gaps)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_arrow_reads_the_same_from_files(tmp_path: Path, isolation: Isolation) -> None:
    unpack(load_case("transactions"), tmp_path)
    for topic, partition in PARTITIONS:
        table: pa.Table = read_arrow(tmp_path, topic, partitions=[partition], isolation=isolation).read_all()
        assert table["offset"].to_pylist() == expected(topic, partition, isolation)


def test_the_command_line_reads_at_either_isolation(running: Daemon) -> None:
    def printed(*arguments: str) -> list[Any]:
        done = seglog_command(running.address, *arguments)
        assert (done.returncode, done.stderr) == (0, b"")
        return [json.loads(line) for line in done.stdout.splitlines()]

    consume = ("consume", TOPIC, "--partition", "0", "--format", "json")
    assert len(printed(*consume)) == 177
    committed = printed(*consume, "--isolation", "read_committed")
    assert [record["offset"] for record in committed] == expected(TOPIC, 0, "read_committed")
    offsets = ("--json", "offsets", TOPIC, "--partition", "0")
    assert printed(*offsets)[0][0]["latest"] == END
    assert printed(*offsets, "--isolation", "read_committed")[0][0]["latest"] == STABLE
    (lag,) = printed(*offsets, "--isolation", "read_committed", "--position", "0:100")[0]
    assert lag["records"] == STABLE - 100


def test_the_command_line_takes_the_isolations_there_are() -> None:
    assert TYPED == ISOLATIONS
