"""``seglog transaction``, with a real broker: what it prints, what it refuses and its exit codes."""

import json
from collections.abc import Iterator

import pytest

import seglog
from seglog.cli.exits import OK
from seglog.testing import Broker
from tests.unit.clients.cli.conftest import Said, Typed

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


@pytest.fixture(autouse=True)
def server(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGLOG_SERVER", broker.address)


def test_transactions_are_listed_and_described(client: seglog.Client, said: Said) -> None:
    with client.transaction("ended") as txn:
        txn.send("clicks", "1")
    with client.transaction("open one") as txn:
        for sent in (txn.send("clicks", "2", partition=1), txn.send("orders", "3", partition=0)):
            sent.result()  # their partitions are part of it by then
        rows = {line.split("  ")[0]: line for line in said(OK, "transaction", "list").splitlines()}
        assert {"TRANSACTIONAL ID", "ended", "open one"} <= rows.keys()
        assert "CompleteCommit" in rows["ended"]
        assert "Ongoing" in rows["open one"]
        assert [line.split("  ")[0] for line in said(OK, "transaction", "list", "--open").splitlines()[1:]] == [
            "open one"
        ]
        described = said(OK, "transaction", "describe", "open one")
        assert described.splitlines()[0] == "open one: Ongoing"
        assert "  clicks: partition 1\n  orders: partition 0\n" in described
        told = json.loads(said(OK, "transaction", "describe", "--json", "open one"))
        assert told["partitions"] == [{"topic": "clicks", "partitions": [1]}, {"topic": "orders", "partitions": [0]}]
        assert told["timeout_ms"] == 60_000


def test_what_does_not_hang_is_not_aborted_as_that(client: seglog.Client, typed: Typed) -> None:
    with client.transaction("not hanging") as txn:
        first = txn.send("orders", "1", partition=1).result().offset
        for offset, sentence in (
            (first, "it is that of not hanging, and is to be aborted by its id"),
            (first + 7, f"no open transaction begins at offset {first + 7} of orders-1"),
        ):
            code, out, error = typed("transaction", "abort-hanging", "orders", "1", str(offset), "--yes")
            assert (code, out, sentence in error) == (REFUSED, "", True)


def test_an_open_transaction_is_aborted_and_its_producer_is_fenced(client: seglog.Client, said: Said) -> None:
    txn = client.transaction("hangs")

    def be_aborted() -> None:
        with txn:
            txn.send("clicks", "lost").result()
            assert said(OK, "transaction", "abort", "hangs", "--yes") == "hangs: aborted\n"

    with pytest.raises(seglog.TransactionFenced):
        be_aborted()
    assert "no open transaction" in said(REFUSED, "transaction", "abort", "hangs", "--yes")
    with client.consumer("clicks", isolation="read_committed") as consumer:
        assert "lost" not in [(record.value or b"").decode() for record in consumer]


def test_a_group_shows_what_waits_for_the_end_of_a_transaction(client: seglog.Client, said: Said) -> None:
    client.create_topic("waits", 1)
    with client.producer("waits") as producer:
        producer.send("before")
    client.reset_group("readers", 0, {"waits": None})
    with client.transaction("slow") as txn:
        txn.send("waits", "1").result()
        txn.send("waits", "2").result()
        (offset,) = json.loads(said(OK, "group", "describe", "--json", "readers"))["offsets"]
        assert (offset["lag"]["records"], offset["lag"]["unstable"]) == (3, 2)
        assert "UNSTABLE" in said(OK, "group", "describe", "readers")
    assert "UNSTABLE" not in said(OK, "group", "describe", "readers")
