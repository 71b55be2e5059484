"""``seglog transaction``, with a real broker: what it prints, what it refuses and its exit codes."""

import json
from collections.abc import Iterator

import pytest

import seglog
from seglog.cli import main
from seglog.cli.exits import OK
from seglog.testing import Broker

REFUSED = 4


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[seglog.Client]:
    with seglog.connect(broker.address) as client:
        for name in ("clicks", "orders"):
            client.create_topic(name, 2, exist_ok=True)
        yield client


class Printed:
    """Runs commands, and keeps what they print."""

    def __init__(self, broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
        self._broker = broker
        self._capsys = capsys
        self.errors = ""

    def of(self, *arguments: str, code: int = OK) -> str:
        assert main(["--server", self._broker.address, "transaction", *arguments]) == code
        out, self.errors = self._capsys.readouterr()
        return out


@pytest.fixture
def printed(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(broker, capsys)


def test_transactions_are_listed_and_described(client: seglog.Client, printed: Printed) -> None:
    with client.transaction("ended") as txn:
        txn.send("clicks", "1")
    with client.transaction("open one") as txn:
        for sent in (txn.send("clicks", "2", partition=1), txn.send("orders", "3", partition=0)):
            sent.result()  # their partitions are part of it by then
        rows = {line.split("  ")[0]: line for line in printed.of("list").splitlines()}
        assert {"TRANSACTIONAL ID", "ended", "open one"} <= rows.keys()
        assert "CompleteCommit" in rows["ended"]
        assert "Ongoing" in rows["open one"]
        assert [line.split("  ")[0] for line in printed.of("list", "--open").splitlines()[1:]] == ["open one"]
        described = printed.of("describe", "open one")
        assert described.splitlines()[0] == "open one: Ongoing"
        assert "  clicks: partition 1\n  orders: partition 0\n" in described
        told = json.loads(printed.of("describe", "--json", "open one"))
        assert told["partitions"] == [{"topic": "clicks", "partitions": [1]}, {"topic": "orders", "partitions": [0]}]
        assert told["timeout_ms"] == 60_000


def test_what_does_not_hang_is_not_aborted_as_that(client: seglog.Client, printed: Printed) -> None:
    with client.transaction("not hanging") as txn:
        first = txn.send("orders", "1", partition=1).result().offset
        assert printed.of("abort-hanging", "orders", "1", str(first), "--yes", code=REFUSED) == ""
        assert "it is that of not hanging, and is to be aborted by its id" in printed.errors
        assert printed.of("abort-hanging", "orders", "1", str(first + 7), "--yes", code=REFUSED) == ""
        assert f"no open transaction begins at offset {first + 7} of orders-1" in printed.errors


def test_an_open_transaction_is_aborted_and_its_producer_is_fenced(client: seglog.Client, printed: Printed) -> None:
    txn = client.transaction("hangs")

    def be_aborted() -> None:
        with txn:
            txn.send("clicks", "lost").result()
            assert printed.of("abort", "hangs", "--yes") == "hangs: aborted\n"

    with pytest.raises(seglog.TransactionFenced):
        be_aborted()
    assert printed.of("abort", "hangs", "--yes", code=REFUSED) == ""
    assert "no open transaction" in printed.errors
    with client.consumer("clicks", isolation="read_committed") as consumer:
        assert "lost" not in [(record.value or b"").decode() for record in consumer]


def test_what_is_not_known_is_refused(printed: Printed) -> None:
    for command in ("describe", "abort"):
        printed.of(command, "unknown", code=REFUSED)
        assert "there is no producer of unknown" in printed.errors


def test_a_group_shows_what_waits_for_the_end_of_a_transaction(
    client: seglog.Client, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_topic("waits", 1)
    with client.producer("waits") as producer:
        producer.send("before")
    client.reset_group("readers", 0, {"waits": None})
    with client.transaction("slow") as txn:
        txn.send("waits", "1").result()
        txn.send("waits", "2").result()
        assert main(["--server", broker.address, "group", "describe", "--json", "readers"]) == OK
        (offset,) = json.loads(capsys.readouterr().out)["offsets"]
        assert (offset["lag"]["records"], offset["lag"]["unstable"]) == (3, 2)
        assert main(["--server", broker.address, "group", "describe", "readers"]) == OK
        assert "UNSTABLE" in capsys.readouterr().out
    assert main(["--server", broker.address, "group", "describe", "readers"]) == OK
    assert "UNSTABLE" not in capsys.readouterr().out
