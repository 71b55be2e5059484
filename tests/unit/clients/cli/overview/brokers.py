"""Readings of brokers that there are not: a healthy one and a sick one, each at two moments."""

from collections.abc import Mapping, Sequence
from typing import Any

from seglog.cli.overview.readings import Reading
from seglog_protocol.messages import API_VERSIONS, HelloReply, MetricBuckets, MetricFamily, MetricSample

BOUNDS = [0.001, 0.002, 0.005, 0.01, 0.1]


def family(name: str, labels: Sequence[str], samples: Mapping[tuple[str, ...], Any]) -> MetricFamily:
    kind = "counter" if name.endswith("_total") else "histogram" if name.endswith("duration_seconds") else "gauge"
    values = [MetricSample(list(found), value) for found, value in samples.items()]
    return MetricFamily(name, kind, "What it means.", list(labels), values)


def buckets(*counts: int) -> MetricBuckets:
    return MetricBuckets(BOUNDS, [*counts], sum=0.002 * sum(counts))


def reading(at: float, problems: Sequence[str], families: Sequence[MetricFamily]) -> Reading:
    hello = HelloReply("seglog", "seglogd/0.3.0", dict(API_VERSIONS), {}, problems=list(problems), partitions=5)
    return Reading(at, 1_700_273_600 + at, hello, {found.name: found for found in families})


def _plain(values: Mapping[str, float]) -> list[MetricFamily]:
    return [family(f"seglog_{name}", (), {(): value}) for name, value in values.items()]


def _partitions(name: str, values: Mapping[str, Sequence[float]]) -> MetricFamily:
    samples: dict[tuple[str, ...], float] = {
        (topic, str(n)): value for topic, found in values.items() for n, value in enumerate(found)
    }
    return family(f"seglog_partition_{name}", ("topic", "partition"), samples)


def _groups(name: str, values: Mapping[tuple[str, ...], float]) -> MetricFamily:
    return family(f"seglog_group_{name}", ("group", "topic", "partition"), values)


def healthy(seconds: float = 0.0) -> Reading:
    """So many seconds after the first: 1,000 records a second in clicks, none in the other topics."""
    grown = 1000 * seconds
    families = _plain(
        {
            "start_time_seconds": 1_700_000_000.0,
            "uptime_seconds": 273_600 + seconds,
            "problems": 0,
            "append_bytes_total": 5e9 + 120 * grown,
            "fetch_bytes_total": 9e9 + 240 * grown,
            "fetches_waiting": 4,
            "not_durable_bytes": 12_000,
            "not_durable_seconds": 0.004,
            "loop_busy_seconds_total": 900 + 0.12 * seconds,
            "loop_longest_turn_seconds": 0.0071,
            "connections_limit": 10_000,
            "request_memory_bytes": 0,
            "request_memory_limit_bytes": 268_435_456,
            "open_files": 41,
            "open_files_limit": 2_048,
            "topics": 3,
            "recovery_ratio": 1,
            "disk_size_bytes": 500e9,
            "disk_free_bytes": 321e9,
            "disk_full": 0,
            "disk_full_in_seconds": float("inf"),
            "retention_next_loss_seconds": 93_600,
            "damaged_ranges": 0,
            "topics_left_out": 0,
            "groups_left_out": 0,
        }
    )
    families += [
        family("seglog_connections", ("listener",), {("native",): 7, ("PLAINTEXT",): 12}),
        family("seglog_requests_total", ("listener", "api"), {("native", "append"): 4000 + grown / 10}),
        family("seglog_request_errors_total", ("listener", "api", "code"), {("native", "fetch", "CORRUPT_MESSAGE"): 3}),
        family("seglog_append_batches_total", ("ack",), {("disk",): 80_000 + grown / 10, ("os",): 5}),
        family(
            "seglog_request_duration_seconds",
            ("listener", "api"),
            {
                ("native", "append"): buckets(1000, 500 + int(90 * seconds), int(10 * seconds), 0, 0, 0),
                ("PLAINTEXT", "Fetch"): buckets(1000 + int(100 * seconds), 0, 0, 0, 0, 0),
            },
        ),
        family("seglog_fsync_duration_seconds", (), {(): buckets(10, 20 + int(50 * seconds), 0, 0, 0, 0)}),
        family("seglog_partitions", ("state",), {("serving",): 5, ("recovering",): 0, ("offline",): 0}),
        _partitions("size_bytes", {"clicks": [2e9, 1e9], "orders": [7e9], "metrics.raw": [5e6, 6e6]}),
        _partitions("log_end_offset", {"clicks": [grown, 50_000.0], "orders": [9e6], "metrics.raw": [100.0, 200.0]}),
        _partitions("durable_offset", {"clicks": [grown, 49_950.0], "orders": [9e6], "metrics.raw": [100.0, 200.0]}),
        family("seglog_group_members", ("group",), {("billing",): 2, ("search",): 1}),
        family("seglog_group_state", ("group", "state"), {("billing", "Stable"): 1, ("search", "Stable"): 1}),
        _groups("lag", {("billing", "orders", "0"): 0, ("search", "clicks", "0"): 40, ("search", "clicks", "1"): 2}),
        _groups("lag_seconds", {("billing", "orders", "0"): 0, ("search", "clicks", "0"): 0.8}),
        _groups("time_to_loss_seconds", {("billing", "orders", "0"): float("inf"), ("search", "clicks", "0"): 90_000}),
    ]
    return reading(100 + seconds, [], families)


PROBLEMS = (
    "clicks-0 is offline: Input/output error",
    "the disk is full: 1.2 GB of 500.0 GB are free, appends are refused until there are 25.0 GB",
)


def sick(seconds: float = 0.0) -> Reading:
    """The disk is full, a partition is offline, a group is dead and loses records soon."""
    well = healthy(seconds)
    changed = _plain(
        {
            "problems": len(PROBLEMS),
            "disk_free_bytes": 1.2e9,
            "disk_full": 1,
            "disk_full_in_seconds": 0,
            "not_durable_bytes": 48e6,
            "not_durable_seconds": 34,
            "loop_longest_turn_seconds": 0.31,
            "damaged_ranges": 2,
            "open_files": 2_040,
            "recovery_ratio": 0.25,
        }
    )
    changed += [
        family("seglog_request_errors_total", ("listener", "api", "code"), {("native", "append", "FULL"): 5 * seconds}),
        family("seglog_partitions", ("state",), {("serving",): 3, ("recovering",): 1, ("offline",): 1}),
        family("seglog_group_members", ("group",), {("billing",): 2, ("audit",): 0}),
        family("seglog_group_state", ("group", "state"), {("billing", "Stable"): 1, ("audit", "Empty"): 1}),
        _groups("lag", {("billing", "orders", "0"): 0, ("audit", "orders", "0"): 8_400_000}),
        _groups("lag_seconds", {("billing", "orders", "0"): 0, ("audit", "orders", "0"): 400_000}),
        _groups("time_to_loss_seconds", {("billing", "orders", "0"): float("inf"), ("audit", "orders", "0"): 1500}),
    ]
    families = dict(well.families) | {found.name: found for found in changed}
    return reading(well.at, PROBLEMS, list(families.values()))
