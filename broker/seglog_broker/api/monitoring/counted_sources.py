"""The families of what the broker counts while it serves: requests and connections by listener, fsyncs, turns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter

from seglog_broker.api.monitoring.samples import Buckets, Sample
from seglog_broker.api.monitoring.slicing import Source
from seglog_broker.runtime.histogram import Histogram
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.request_metrics import ApiMetrics, ListenerMetrics


def one(value: Callable[[], float]) -> Source:
    """The source of a family without labels."""
    return lambda: (Sample((), value()),)


def by_label(counts: Mapping[str, float]) -> Source:
    """A sample for each value of the one label."""
    return lambda: [Sample((label,), count) for label, count in sorted(counts.items())]


def buckets(histogram: Histogram) -> Buckets:
    """What it has counted so far."""
    return Buckets(histogram.bounds, tuple(histogram.counts), histogram.sum)


def counted_sources(metrics: Metrics) -> Mapping[str, Source]:
    """What makes the samples of each of these families."""
    loop = metrics.loop
    return {
        "seglog_requests_total": _by_api(metrics, lambda api: api.requests),
        "seglog_request_errors_total": lambda: _errors(metrics),
        "seglog_request_bytes_total": _by_api(metrics, lambda api: api.request_bytes),
        "seglog_response_bytes_total": _by_api(metrics, lambda api: api.response_bytes),
        "seglog_request_duration_seconds": _by_api(metrics, lambda api: buckets(api.seconds)),
        "seglog_append_batches_total": by_label(metrics.appends),
        "seglog_append_bytes_total": one(lambda: metrics.append_bytes),
        "seglog_duplicates_total": one(lambda: metrics.duplicates),
        "seglog_fetch_bytes_total": one(lambda: metrics.fetch_bytes),
        "seglog_fetches_waited_total": one(lambda: metrics.fetches_waited),
        "seglog_cold_reads_total": one(lambda: metrics.cold_reads),
        "seglog_not_durable_bytes": one(lambda: metrics.not_durable.size),
        "seglog_not_durable_seconds": one(metrics.not_durable.age_seconds),
        "seglog_fsync_duration_seconds": lambda: (Sample((), buckets(metrics.fsync_seconds)),),
        "seglog_fsyncs_total": one(lambda: metrics.fsyncs),
        "seglog_loop_busy_seconds_total": one(lambda: loop.busy_seconds),
        "seglog_loop_turns_total": one(lambda: loop.turns),
        "seglog_loop_longest_turn_seconds": one(lambda: loop.longest_turn.at(perf_counter())),
        "seglog_loop_longest_stall_seconds": one(lambda: loop.longest_stall.at(perf_counter())),
        "seglog_connections": _by_listener(metrics, lambda listener: listener.connections),
        "seglog_connections_accepted_total": _by_listener(metrics, lambda listener: listener.connections_accepted),
        "seglog_connections_ended_total": by_label(metrics.connections_ended),
        "seglog_authentications_total": _by_mechanism(metrics, lambda listener: listener.authentications),
        "seglog_authentication_failures_total": _by_mechanism(
            metrics, lambda listener: listener.authentication_failures
        ),
        "seglog_authorization_refusals_total": one(lambda: metrics.authorization_refusals),
        "seglog_tls_handshakes_failed_total": one(lambda: metrics.tls_handshakes_failed),
        "seglog_segments_rolled_total": one(lambda: metrics.segments_rolled),
        "seglog_segments_expired_total": one(lambda: metrics.segments_expired),
        "seglog_expired_bytes_total": one(lambda: metrics.expired_bytes),
        "seglog_partitions_recovered_total": one(lambda: metrics.partitions_recovered),
        "seglog_recovery_bytes_total": one(lambda: metrics.recovery_bytes),
        "seglog_compactions_total": by_label(metrics.compactions),
        "seglog_compaction_read_bytes_total": one(lambda: metrics.compaction_read_bytes),
        "seglog_compaction_written_bytes_total": one(lambda: metrics.compaction_written_bytes),
        "seglog_scrubbed_segments_total": one(lambda: metrics.scrubbed_segments),
        "seglog_scrubbed_bytes_total": one(lambda: metrics.scrubbed_bytes),
        "seglog_scrub_passes_total": one(lambda: metrics.scrub_passes),
        "seglog_scrub_pass_ratio": one(lambda: metrics.scrub_pass_ratio),
        "seglog_scrub_last_pass_timestamp_seconds": one(lambda: metrics.scrub_last_pass_ms / 1000),
        "seglog_scrub_findings_total": one(lambda: metrics.scrub_findings),
    }


def _apis(metrics: Metrics) -> Iterator[tuple[str, ApiMetrics]]:
    """Every api that was asked for, with the name of its listener."""
    for listener in list(metrics.listeners.values()):
        for api in list(listener.apis.values()):
            yield listener.name, api


def _by_api(metrics: Metrics, value: Callable[[ApiMetrics], float | Buckets]) -> Source:
    return lambda: (Sample((listener, api.api), value(api)) for listener, api in _apis(metrics))


def _errors(metrics: Metrics) -> Iterator[Sample]:
    for listener, api in _apis(metrics):
        for code, count in sorted(api.errors.items()):
            yield Sample((listener, api.api, code), count)
    for counts in metrics.listeners.values():
        for code, count in sorted(counts.errors.items()):
            yield Sample((counts.name, "", code), count)


def _by_listener(metrics: Metrics, value: Callable[[ListenerMetrics], float]) -> Source:
    return lambda: [Sample((listener.name,), value(listener)) for listener in metrics.listeners.values()]


def _by_mechanism(metrics: Metrics, counts: Callable[[ListenerMetrics], Counter[str]]) -> Source:
    def samples() -> Iterable[Sample]:
        return [
            Sample((listener.name, mechanism), count)
            for listener in metrics.listeners.values()
            for mechanism, count in sorted(counts(listener).items())
        ]

    return samples
