"""What clients of either face read at each isolation of a directory with transactions that Kafka wrote."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from seglog.arrow import read_arrow
from seglog_protocol.errors import UnsupportedVersionError
from seglog_protocol.isolation import ISOLATIONS, Isolation
from seglog_protocol.messages import Request
from tests.interop.golden import load_case, unpack_open_transactions
from tests.processes import Daemon, daemon
from tests.support import each_case
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.faces import Connect, Face, fetched
from tests.unit.clients.fake_broker import Answer

TOPIC, STABLE, END = "ledger", 162, 192
PARTITIONS = [("ledger", 0), ("ledger", 1), ("version-2", 0)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("transactions") / "data"
    unpack_open_transactions(directory)
    with daemon(directory) as broker:
        yield broker


def expected(topic: str, partition: int, isolation: Isolation) -> list[int]:
    """The offsets that Kafka's own consumer was given."""
    answers = load_case("transactions").answered[f"{topic}-{partition}"]
    told = answers["read_committed"] if isolation == "read_committed" else answers
    return [row[0] for row in told["records"]["all"]]


@pytest.fixture
async def client(connect: Connect, running: Daemon) -> AsyncIterator[Any]:
    async with connect(running.address) as client:
        yield client


async def offsets_read(
    client: Any, topic: str, **options: Any
) -> tuple[list[int], dict[int, int], dict[int, int], list[Any]]:
    """Offsets of the records, then positions, offsets behind by what was answered, and gaps."""
    async with client.consumer(topic, **options) as consumer:
        found = [record.offset async for record in consumer]
        lags = await consumer.lag()
        assert {number: lag.records for number, lag in lags.items()} == consumer.records_behind()
        return found, consumer.positions(), consumer.records_behind(), list(consumer.gaps)


@each_case("isolation", ISOLATIONS)
@each_case(("topic", "partition"), PARTITIONS)
@each_case("partition_bytes", [1, 1 << 20])
async def test_a_consumer_reads_what_kafkas_reads(
    client: Any, topic: str, partition: int, isolation: Isolation, partition_bytes: int
) -> None:
    found, positions, behind, gaps = await offsets_read(
        client, topic, partitions=[partition], isolation=isolation, partition_bytes=partition_bytes
    )
    assert found == expected(topic, partition, isolation)
    if (topic, partition) == (TOPIC, 0):
        assert positions == {0: STABLE if isolation == "read_committed" else END}
    assert behind == {partition: 0}
    assert not gaps


@each_case("start", [0, 30, 75, 150, STABLE, STABLE + 5])
async def test_from_the_middle_of_a_transaction_on_nothing_else_is_read(client: Any, start: int) -> None:
    found, _, behind, gaps = await offsets_read(client, TOPIC, partitions=[0], start=start, isolation="read_committed")
    assert found == [offset for offset in expected(TOPIC, 0, "read_committed") if offset >= start]
    assert behind == {0: 0}
    assert not gaps


async def test_latest_is_the_last_stable_offset(client: Any) -> None:
    for isolation, end in (("read_committed", STABLE), ("read_uncommitted", END)):
        _, positions, _, _ = await offsets_read(client, TOPIC, partitions=[0], start="latest", isolation=isolation)
        assert positions == {0: end}


async def test_lag_is_counted_to_the_last_stable_offset_beyond_which_a_position_may_be(
    client: Any,
) -> None:
    async def lag(position: int, **options: Any) -> Any:
        return (await client.lag(TOPIC, {0: position}, **options))[0]

    assert (await lag(100)).records == END - 100
    assert (await lag(100, isolation="read_committed")).records == STABLE - 100
    beyond = await lag(STABLE + 5, isolation="read_committed")
    assert (beyond.records, beyond.is_beyond_end) == (0, False)
    assert (await lag(END + 5, isolation="read_committed")).is_beyond_end


async def test_a_range_of_batches_is_read_at_either_isolation(client: Any) -> None:
    for isolation in ISOLATIONS:
        wanted = [offset for offset in expected(TOPIC, 0, isolation) if 20 <= offset < 120]  # type: ignore[arg-type]
        batches = await fetched(client, TOPIC, 0, 20, 120, isolation=isolation)
        assert [record.offset for batch in batches for record in batch.records()] == wanted


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.consumer(TOPIC, isolation="committed"),
        lambda client: client.consumer(TOPIC, group="g", isolation="committed"),
        lambda client: client.offsets(TOPIC, isolation="committed"),
        lambda client: client.lag(TOPIC, {0: 1}, isolation="committed"),
    ],
)
async def test_what_is_no_isolation_is_refused(client: Any, ask: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"^isolation is 'read_uncommitted' or 'read_committed', not 'committed'$"):
        await ask(client)


async def test_a_broker_of_an_older_version_is_not_read_as_if_all_were_committed(face: Face) -> None:
    def script(request: Request, _payload: memoryview) -> Answer | None:
        if getattr(request, "isolation", None) is None:
            return None
        return UnsupportedVersionError(f"{request.api} is known in older versions only")

    async with face() as (broker, client):
        broker.script = script
        with pytest.raises(UnsupportedVersionError):
            await offsets_read(client, "t", isolation="read_committed")


# --- Arrow and the command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_arrow_reads_the_same_from_a_broker(running: Daemon, isolation: Isolation) -> None:
    for columns in (["offset"], ["offset", "value"]):
        with read_arrow(running.address, TOPIC, partitions=[0], columns=columns, isolation=isolation) as reader:
            assert reader.read_all()["offset"].to_pylist() == expected(TOPIC, 0, isolation)
            assert reader.positions() == {0: STABLE if isolation == "read_committed" else END}
            assert not list(reader.gaps)


def test_the_command_line_reads_at_either_isolation(running: Daemon, typed: Typed) -> None:
    def printed(*arguments: str) -> list[Any]:
        code, out, errors = typed("--server", running.address, *arguments)
        assert (code, errors) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    consume = ("consume", TOPIC, "--partition", "0", "--format", "json")
    assert len(printed(*consume)) == 177
    committed = printed(*consume, "--isolation", "read_committed")
    assert [record["offset"] for record in committed] == expected(TOPIC, 0, "read_committed")
    offsets = ("--json", "offsets", TOPIC, "--partition", "0")
    assert printed(*offsets)[0][0]["latest"] == END
    assert printed(*offsets, "--isolation", "read_committed")[0][0]["latest"] == STABLE
    (lag,) = printed(*offsets, "--isolation", "read_committed", "--position", "0:100")[0]
    assert lag["records"] == STABLE - 100
