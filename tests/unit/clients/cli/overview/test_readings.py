"""What two readings say: rates, quantiles, and nothing where the broker began anew in between."""

import pytest

from seglog.cli.overview.readings import Numbers, Reading, group_rows, quantile_of, topic_rows
from tests.unit.clients.cli.overview.brokers import family, healthy, reading, sick


def restarted(at: float) -> Reading:
    """As if the broker had been started again just before."""
    now = healthy(at)
    begun = family("seglog_start_time_seconds", (), {(): 1_700_000_500.0})
    return now._replace(families={**now.families, begun.name: begun})


def test_a_rate_is_the_growth_of_all_labels_a_second() -> None:
    numbers = Numbers(healthy(10), healthy(0))
    assert numbers.rate("seglog_append_bytes_total") == 120_000
    assert numbers.rate("seglog_append_batches_total") == 100
    assert numbers.rate("seglog_request_errors_total") == 0
    assert numbers.rate("seglog_of_another_version_total") is None


def test_one_reading_alone_has_values_and_no_rates() -> None:
    numbers = Numbers(healthy(10))
    assert numbers.rate("seglog_append_bytes_total") is None
    assert numbers.quantile("seglog_fsync_duration_seconds", 0.99) is None
    assert numbers.value("seglog_open_files") == 41
    assert numbers.total("seglog_connections") == 19


def test_a_broker_that_was_started_again_has_no_rates_from_before() -> None:
    numbers = Numbers(restarted(10), healthy(20))
    assert numbers.rate("seglog_append_bytes_total") is None
    assert all(row.rate is None for row in topic_rows(numbers))
    assert Numbers(healthy(0), healthy(10)).seconds == 0, "time does not run backwards"


def test_quantiles_are_of_what_came_between_the_readings() -> None:
    numbers = Numbers(healthy(10), healthy(0))
    # 900 appends took 1 to 2 ms, 100 took 2 to 5 ms
    assert numbers.quantile("seglog_request_duration_seconds", 0.5, lambda labels: labels[-1] == "append") == (
        pytest.approx(0.001 + 0.001 * 500 / 900)
    )
    assert numbers.quantile("seglog_request_duration_seconds", 0.99, lambda labels: labels[-1] == "append") == (
        pytest.approx(0.002 + 0.003 * 90 / 100)
    )
    assert Numbers(healthy(10), healthy(10)).quantile("seglog_fsync_duration_seconds", 0.5) is None


def test_a_quantile_is_linear_within_its_bucket_and_none_without_values() -> None:
    assert quantile_of([1.0, 2.0], [0, 0, 0], 0.5) is None
    assert quantile_of([1.0, 2.0], [4, 0, 0], 0.5) == 0.5
    assert quantile_of([1.0, 2.0], [0, 2, 2], 0.25) == 1.5
    assert quantile_of([1.0, 2.0], [0, 0, 5], 0.5) == 2.0, "above all bounds it is not known better"


def test_busy_topics_come_first_then_large_ones() -> None:
    rows = topic_rows(Numbers(healthy(10), healthy(0)))
    assert [row.name for row in rows] == ["clicks", "orders", "metrics.raw"]
    assert rows[0] == ("clicks", 2, 3e9, 60_000, 1000.0, 50)
    assert [row.name for row in topic_rows(Numbers(healthy(10)))] == ["orders", "clicks", "metrics.raw"]


def test_a_topic_that_was_made_in_between_has_the_rate_of_all_its_records() -> None:
    before, now = healthy(0), healthy(10)
    ends = family("seglog_partition_log_end_offset", ("topic", "partition"), {("new", "0"): 500.0})
    (row,) = topic_rows(Numbers(now._replace(families={**now.families, ends.name: ends}), before))
    assert row.rate == 50


def test_groups_that_lose_records_soonest_come_first() -> None:
    assert [row.name for row in group_rows(Numbers(healthy()))] == ["search", "billing"]
    first = group_rows(Numbers(sick()))[0]
    assert first == ("audit", "Empty", 0, 8_400_000, 400_000, 1500)


def test_a_group_that_has_committed_nothing_has_no_lag() -> None:
    members = family("seglog_group_members", ("group",), {("new",): 1})
    (row,) = group_rows(Numbers(reading(0, [], [members])))
    assert row == ("new", "", 1, None, None, None)
