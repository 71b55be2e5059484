"""Pages of transactions, of settings, and of the broker."""

import shlex
from contextlib import suppress

import seglog
from seglog_console import transactions
from seglog_protocol.errors import TransactionFenced
from tests.unit.clients.console.conftest import CommandsHere, Visitor


def test_a_topic_is_created_altered_and_taken_back_truncated_and_deleted(
    visitor: Visitor, client: seglog.Client, commands: CommandsHere
) -> None:
    visitor.see("/topics")
    page = visitor.send(
        "/change/topic-create", topic="visits", partitions="2", config="retention.ms=7d\r\nsegment.ms=9d"
    )
    command = visitor.command()
    assert "Nothing is done yet." in page
    assert command.endswith("topic create visits --partitions 2 --config retention.ms=7d --config segment.ms=9d")
    assert commands.ran == []
    assert "visits: 2 partitions" in (page := visitor.send("/change/topic-create"))
    assert "It has ended well, with exit code 0." in page
    assert [["seglog", *ran] for ran in commands.ran] == [shlex.split(command)]
    assert "It has ended well" not in visitor.see("/topics")
    page = visitor.see("/topics/visits/settings")
    assert "retention.ms 604800000 (7 days) topic Reset… " in page
    page = visitor.see("/topics/visits/settings?key=segment.bytes")
    assert "segment.bytes 1073741824 (1 GiB), from default" in page
    visitor.send("/change/topic-alter", value="32MiB")
    page = visitor.send("/change/topic-alter")
    assert page.index("visits: 2 partitions, retention.ms=604800000, segment.bytes=33554432") < page.index(
        "Settings of visits"
    )
    assert commands.ran[-1][2:] == ["topic", "alter", "visits", "--config", "segment.bytes=32MiB"]
    assert "33554432 (32 MiB) topic" in page
    visitor.send("/change/topic-alter?topic=visits&amp;reset=segment.bytes")
    assert "1073741824 (1 GiB) default" in visitor.send("/change/topic-alter")
    visitor.html = visitor.html[visitor.html.index("More partitions") :]
    visitor.send("/change/topic-alter", partitions="3")
    assert "3 partitions" in visitor.send("/change/topic-alter")
    with client.producer("visits") as producer:
        producer.send(b"x")
    assert "EARLIEST LATEST" in visitor.send("/change/topic-truncate", before="end")
    assert "visits 0 " in visitor.send("/change/topic-truncate")
    assert "deleted forever" in (page := visitor.send("/change/topic-delete"))
    assert "EARLIEST LATEST" in page
    assert commands.ran[-1][2:] == ["offsets", "visits"]
    assert "visits: deleted" in visitor.send("/change/topic-delete")
    assert "visits" not in [topic.name for topic in client.topics()]
    visitor.see("/topics/visits/settings")
    assert visitor.status == 404
    visitor.see("/topics/visits/settings?key=nothing")
    assert visitor.status == 404


def test_a_transaction_that_is_open_comes_first_and_is_aborted(
    visitor: Visitor, client: seglog.Client, commands: CommandsHere
) -> None:
    client.create_topic("paid", exist_ok=True)
    with client.transaction("a-done") as done:
        done.send("paid", b"done")
    with suppress(TransactionFenced), client.transaction("stuck") as stuck:
        stuck.send("paid", b"waits").result()
        page = visitor.see("/transactions")
        assert page.index("stuck Ongoing") < page.index("a-done CompleteCommit")
        page = visitor.send("/change/transaction-abort")
        assert "its producer is fenced" in page
        assert "stuck: Ongoing" in page
        assert "paid" in page
        assert "stuck: aborted" in visitor.send("/change/transaction-abort")
        assert commands.ran[-1][2:] == ["transaction", "abort", "stuck", "--yes"]
        while "CompleteAbort" not in visitor.see("/transactions"):
            assert "PrepareAbort" in visitor.html


def test_a_hanging_transaction_is_found_by_the_command_that_its_problem_names() -> None:
    problem = "clicks-1 has a hanging transaction: abort it by `seglog transaction abort-hanging clicks 1 40`"
    assert transactions.hanging(["the disk is full", problem]) == [(problem, ("clicks", "1", "40"))]


def test_the_broker_says_what_is_to_be_done_how_it_is_reached_and_how_it_is_set(visitor: Visitor) -> None:
    page = visitor.see("/broker")
    assert page.index("Examined from here") < page.index("Listeners") < page.index("Versions and limits")
    assert "client and broker are" in page
    assert "Keys, those that are not at the default first" in page
    assert "next keys" in page.lower()
    assert "51 to 100 of" in visitor.see("/broker?keys=1")
