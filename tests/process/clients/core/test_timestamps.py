"""Timestamps that a sender should know about: older than the topic keeps, or seconds for milliseconds."""

import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seglog
import seglog.trio
from seglog import raw
from seglog.core.moments import to_timestamp
from seglog.core.timestamps import TimestampWarning, TimestampWatch, looks_like_seconds
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages import AppendResult
from seglog_spark.options import parse_write_options
from seglog_spark.writing import warn_of_expired, write_rows
from tests.processes import Daemon
from tests.support import each_case
from tests.unit.clients.fake_broker import fake_broker

OLD = 1_546_300_800_000  # 2019-01-01
WEEK_MS = 7 * 86_400_000
KEPT_FOR_EVER: dict[str, Any] = {"retention.ms": -1}
STAMPED: dict[str, Any] = {"message.timestamp.type": "LogAppendTime"}
COMPACTED: dict[str, Any] = {"cleanup.policy": "compact"}


@pytest.fixture
def client(emptied: Daemon) -> Iterator[seglog.Client]:
    with seglog.connect(emptied.address) as connected:
        yield connected


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def warned(call: Any) -> tuple[Any, list[str]]:
    """What ``call`` returns, and the TimestampWarnings that it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert {warning.category for warning in caught} <= {TimestampWarning}
    assert all(warning.filename == __file__ for warning in caught), "the line that is named is the program's own"
    return result, [str(warning.message) for warning in caught]


# --- Producers --------------------------------------------------------------------------------------------------------


def test_a_receipt_of_a_record_that_expired_on_arrival(client: seglog.Client) -> None:
    """A receipt says that a record expired on arrival and a warning does once a topic."""
    client.create_topic("t")
    with client.producer("t") as producer:
        deliveries, said = warned(lambda: [producer.send(b"x", timestamp=t) for t in (OLD, OLD + 1, now_ms(), -1)])
        assert [delivery.result(30).expired_on_arrival for delivery in deliveries] == [True, True, False, False]
        assert producer.expired_on_arrival == 2
    assert len(said) == 1
    assert "2019-01-01" in said[0]
    assert "the topic keeps 7 d (retention.ms)" in said[0]
    with client.producer("t") as again:
        _, said = warned(lambda: again.send(b"x", timestamp=OLD).result(30))
        assert said == [], "once a topic, not once a producer"
        before = client.samples(["seglog_topic_expired_on_arrival_total"])
        client.alter_topic("t", STAMPED)
        assert not again.send(b"x", timestamp=OLD).result(30).expired_on_arrival
        assert client.samples(["seglog_topic_expired_on_arrival_total"]) == before


def test_a_producer_follows_the_topics_retention_as_it_is_altered(client: seglog.Client) -> None:
    client.create_topic("t", config=KEPT_FOR_EVER)
    with client.producer("t") as producer:
        assert not producer.send(b"x", timestamp=OLD).result(30).expired_on_arrival
        client.alter_topic("t", {"retention.ms": 60_000})
        receipt, said = warned(lambda: producer.send(b"x", timestamp=OLD).result(30))
        assert receipt.expired_on_arrival, "the broker says it with the answer"
        assert said == [], "it was not known when the record was sent"
        _, said = warned(lambda: producer.send(b"x", timestamp=now_ms() - 120_000).result(30))
        assert "keeps 1 min" in said[0]
        client.alter_topic("t", KEPT_FOR_EVER)
        producer.send(b"x").result(30)
        assert not producer.send(b"x", timestamp=OLD).result(30).expired_on_arrival


def test_at_ack_none_the_topics_configuration_says_it(client: seglog.Client) -> None:
    client.create_topic("t")
    with client.producer("t", ack="none") as producer:
        receipt, said = warned(lambda: producer.send(b"x", timestamp=OLD).result(30))
    assert (receipt.expired_on_arrival, len(said)) == (True, 1)


def test_a_program_that_makes_errors_of_warnings_has_sent_nothing(client: seglog.Client) -> None:
    client.create_topic("t")
    with client.producer("t") as producer, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TimestampWarning):
            producer.send(b"x", timestamp=OLD)
    assert client.offsets("t")[0].latest == 0


def test_whole_batches_are_told_by_their_headers(client: seglog.Client) -> None:
    client.create_topic("t")
    batches = [
        raw.RawBatch("t", 0, encode_batch([(timestamp, None, b"x", ()) for timestamp in timestamps]))
        for timestamps in ([OLD, now_ms()], [now_ms()], [-1])
    ]
    receipts, said = warned(lambda: raw.append(client, batches))
    assert [receipt.expired_on_arrival for receipt in receipts] == [True, False, False]
    assert len(said) == 1


# --- Seconds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [KEPT_FOR_EVER, {}], ids=str)
def test_seconds_taken_for_milliseconds_are_guessed(client: seglog.Client, config: dict[str, Any]) -> None:
    client.create_topic("t", config=config)
    seconds = OLD // 1000
    with client.producer("t") as producer:
        receipt, said = warned(lambda: producer.send(b"x", timestamp=seconds).result(30))
    assert receipt.expired_on_arrival == (not config)
    assert len(said) == 1
    assert "1970-01-18" in said[0]
    assert "if seconds are meant (2019-01-01T00:00:00.000Z), multiply them by 1000" in said[0]


def test_what_looks_like_seconds_would_be_recent() -> None:
    now = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000
    recent = [datetime(2000, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)]
    assert all(looks_like_seconds(int(moment.timestamp()), now) for moment in recent)
    other = [0, 1, 1000, 946_684_799, int(datetime(2028, 1, 1, tzinfo=UTC).timestamp()), OLD]
    assert not any(looks_like_seconds(timestamp, now) for timestamp in other)


@each_case("value", [1795348270.6, 1.5e12, float("nan"), np.float64(1.0)], ids=str)
def test_a_float_is_refused_with_what_to_write(value: float) -> None:
    with fake_broker() as broker, seglog.connect(broker.address) as client, client.producer("t") as producer:
        with pytest.raises(TypeError, match=r"whole milliseconds since 1970.*not the float.*int\(seconds \* 1000\)"):
            producer.send(b"x", timestamp=value)  # type: ignore[arg-type]
        assert producer.unacknowledged == 0


@each_case(
    ("value", "timestamp"),
    [(5, 5), (-1, -1), (np.int64(OLD), OLD), (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=1), 1000)],
    ids=str,
)
def test_what_a_timestamp_may_be(value: Any, timestamp: int) -> None:
    assert to_timestamp(value) == timestamp


@each_case(
    ("value", "error"),
    [
        (True, TypeError),
        ("2019", TypeError),
        (-2, ValueError),
        (2**63, ValueError),
        (datetime(1960, 1, 1, tzinfo=UTC), ValueError),
        (datetime(2019, 1, 1), ValueError),  # noqa: DTZ001 - that is what is refused
    ],
    ids=str,
)
def test_what_a_timestamp_may_not_be(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        to_timestamp(value)


# --- Tables -----------------------------------------------------------------------------------------------------------


def table(timestamps: list[int | None]) -> pa.Table:
    return pa.table({"value": [b"x"] * len(timestamps), "timestamp": pa.array(timestamps, pa.int64())})


def test_a_written_table_counts_the_rows_that_expired_on_arrival(client: seglog.Client) -> None:
    client.create_topic("t", 3)
    rows = table([OLD, None, now_ms(), OLD + 5, -1])
    written, said = warned(lambda: seglog.write_arrow(client, "t", rows))
    assert (written.records, written.expired_on_arrival) == (5, 2)
    assert len(said) == 1
    written, said = warned(lambda: seglog.write_arrow(client, "t", table([now_ms()])))
    assert (written.expired_on_arrival, said) == (0, [])


# --- What is known ----------------------------------------------------------------------------------------------------


def test_a_watch_learns_from_answers() -> None:
    watch = TimestampWatch("t")
    assert watch.learn(AppendResult("t", 0, 0, -1, "disk", False)) == 0, "an older broker says nothing"
    assert watch.learn(AppendResult("t", 0, 0, -1, "disk", False, expired_before=10**13)) == 10**13
    assert warned(lambda: watch.check(OLD))[0]
    assert watch.learn(AppendResult("t", 0, 0, 777, "disk", False, expired_before=0)) == 0
    assert watch.suspicious_below == 0, "the broker's time takes the place of what is sent"


def test_the_sink_of_spark_warns_on_the_driver_of_what_its_tasks_counted(client: seglog.Client) -> None:
    client.create_topic("t")
    options = parse_write_options({"servers": client.server, "topic": "t"}, "batch")
    rows = table([OLD, now_ms(), OLD]).to_batches()
    written, said = warned(lambda: write_rows(client, options, rows, None))
    assert (written.expired_on_arrival, len(said)) == ({"t": 2}, 1), "in the task's log"
    _, said = warned(lambda: warn_of_expired([written, written]))
    assert len(said) == 1
    assert said[0].startswith(
        "4 rows for t expired on arrival: by their timestamps they are older than the topic keeps"
    )
