"""The families with samples of the broker as a whole, of what it counts while it serves, and of its transactions.

Beside them its problems, and what is wrong with transactions, in sentences.

The operator is told problems by `seglog ping`, /healthz, `seglog doctor` and seglog_problems.
"""

import contextlib
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Final

import trio

from seglog_broker.api.fetch import FetchService
from seglog_broker.api.monitoring.measurements import DiskForecast
from seglog_broker.api.monitoring.samples import Buckets, Sample, Source
from seglog_broker.coordinators.transactions.service.open_transactions import Hanging
from seglog_broker.coordinators.transactions.service.service import TransactionService
from seglog_broker.partitions.backup_progress import BackupProgress
from seglog_broker.partitions.partition import Problem
from seglog_broker.partitions.recoveries import Views
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import logs
from seglog_broker.runtime.descriptors import connections_max, handles_max
from seglog_broker.runtime.histogram import Histogram
from seglog_broker.runtime.metrics import ApiMetrics, ListenerMetrics, Metrics
from seglog_broker.runtime.request_memory import RequestMemory
from seglog_broker.runtime.response_memory import ResponseMemory
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.security.tls import ServerTls
from seglog_broker.texts import counted, size_text, time_text
from seglog_protocol.messages import BackupStatus
from seglog_protocol.version import VERSION

PART_COST: Final = 250.0
"""Microseconds to look at a part of the partitions."""

NAME_CHARACTERS_TOLD: Final = 100
"""Of a transactional id, in a sentence."""

TOLD_MAX: Final = 20
"""Sentences about transactions that cannot be ended, and about those that hang: there may be thousands of each."""


@dataclass(eq=False, repr=False)
class Problems(Service):
    """The problems of a broker, looked up whenever they are asked for."""

    _tls: ServerTls | None
    _of_coordinators: Callable[[], Iterator[Problem | None]]
    not_reloaded: dict[str, str] = field(default_factory=dict)
    """What the last reload could not use, each with the reason: what was in force before it still is."""

    def __iter__(self) -> Iterator[Problem]:
        """Each problem."""
        return (problem for problem in self.found() if problem is not None)

    def found(self) -> Iterator[Problem | None]:
        """As iterating over it, with None for what was looked at and is well, so that others may run in between."""
        offline = self._directory.report.offline
        for (topic, number), reason in offline.items():
            yield Problem("disk", f"{topic}-{number} is offline: {reason}")
        others = [*self._directory.report.problems, self._clock_trust.problem]
        others += [each.problem(self._clock.now_ms()) for each in (self._tls.certificates if self._tls else ())]
        others += [
            f"{what} was not reloaded, so that the one before is still in force: {reason}"
            for what, reason in self.not_reloaded.items()
        ]
        yield from (None if sentence is None else Problem("other", sentence) for sentence in others)
        space = self._directory.space
        if (sentence := space.problem()) is not None:
            yield Problem("disk-full" if space.is_full or space.lacks_inodes else "disk-fills", sentence)
        for recovery in self._recoveries.without_room:
            yield Problem(
                "disk-full",
                f"{recovery.topic}-{recovery.partition} is read-only until there is room on the disk, which its "
                f"recovery needs ({recovery.lacked_room})",
            )
        awaited = self._table.awaited
        if awaited.trouble is not None:
            yield Problem(
                "other",
                f"{counted(len(awaited), 'segment')} of {size_text(awaited.bytes_left)} are not there yet, and their "
                f"backup does not give {len(awaited.failed)} of them ({awaited.trouble}); they are tried again",
            )
        for part in self._table.in_parts():
            for partition in part:
                if partition.has_problems:
                    yield from partition.what_is_wrong()
            yield None
        yield from self._of_coordinators()


@dataclass(eq=False, repr=False)
class BrokerSources(Service):
    """Reads the state of a broker, whenever it is asked; ``sources`` are its families by name."""

    views: Views
    request_memory: RequestMemory
    response_memory: ResponseMemory
    transfers: Transfers
    fetches: FetchService
    problems: Problems
    forecast: DiskForecast
    tls: ServerTls | None
    build: str
    """Whether the modules are compiled: as ``build_of`` says."""
    started_ms: int

    def sources(self) -> Mapping[str, Source]:
        """What makes the samples of each family that has no labels but those of the broker."""
        return {
            **self._of_the_process(),
            **counted_sources(self._metrics),
            **self._of_bounds(),
            **self._of_the_directory(),
        }

    def _of_the_process(self) -> dict[str, Source]:
        return {
            "seglog_build_info": lambda: (Sample((VERSION, self.build, sys.version.split()[0]), 1),),
            "seglog_start_time_seconds": one(lambda: self.started_ms / 1000),
            "seglog_uptime_seconds": one(lambda: max(0, self._clock.now_ms() - self.started_ms) / 1000),
            "seglog_problems": lambda: total(problem is not None for problem in self.problems.found()),
            "seglog_process_cpu_seconds_total": one(time.process_time),
            "seglog_process_resident_memory_bytes": _resident_memory,
            "seglog_log_lines_lost_total": one(logs.lines_lost),
        }

    def _of_bounds(self) -> dict[str, Source]:
        handles = self._directory.handles
        return {
            "seglog_fetches_waiting": one(lambda: self.fetches.waiting),
            "seglog_connections_limit": one(lambda: connections_max(self._config.current)),
            "seglog_request_memory_bytes": one(lambda: self.request_memory.used),
            "seglog_request_memory_limit_bytes": one(lambda: self.request_memory.limit),
            "seglog_request_memory_waiting": one(lambda: self.request_memory.waiting),
            "seglog_request_memory_waits_total": one(lambda: self.request_memory.waits),
            "seglog_response_memory_bytes": one(lambda: self.response_memory.used),
            "seglog_answers_waiting": one(lambda: len(self.transfers)),
            "seglog_open_files": one(lambda: handles.open_count),
            "seglog_open_files_limit": one(lambda: handles_max(self._config.current)),
        }

    def _of_the_directory(self) -> dict[str, Source]:
        space = self._directory.space
        return {
            "seglog_topics": one(lambda: len(self._directory.registry.topics)),
            "seglog_partitions": self._partitions_by_state,
            "seglog_awaited_segments": one(lambda: len(self._table.awaited)),
            "seglog_awaited_bytes": one(lambda: self._table.awaited.bytes_left),
            "seglog_recovery_ratio": one(lambda: self._recoveries.ratio),
            "seglog_disk_size_bytes": one(lambda: space.total),
            "seglog_disk_free_bytes": one(lambda: space.free),
            "seglog_disk_free_inodes": one(lambda: -1 if space.inodes is None else space.inodes.free),
            "seglog_disk_full": one(lambda: int(space.is_full)),
            "seglog_disk_full_in_seconds": one(lambda: self.forecast.full_in_seconds(trio.current_time())),
            "seglog_ballast_bytes": one(lambda: space.ballast),
            "seglog_retention_next_loss_seconds": self._seconds_to_next_expiry,
            "seglog_damaged_ranges": self._damaged_ranges,
            "seglog_clock_untrusted": one(lambda: int(self._clock_trust.is_held)),
            "seglog_certificate_expiry_timestamp_seconds": self._certificate_end,
        }

    def _partitions_by_state(self) -> Iterator[Sample | None]:
        read_only = len(self.views)
        served = 0
        for part in self._table.in_parts():
            served += len(part)
            read_only += sum([partition.log.state_file.state.read_only is not None for partition in part])
            yield None
        yield Sample(("serving",), served - read_only + len(self.views))
        yield Sample(("recovering",), len(self._recoveries) - len(self.views))
        yield Sample(("offline",), len(self._directory.report.offline))
        yield Sample(("read_only",), read_only)

    def _seconds_to_next_expiry(self) -> Iterator[Sample | None]:
        next_ms = math.inf
        for part in self._table.in_parts():
            moments = [partition.next_expiry_ms for partition in part]
            next_ms = min([next_ms, *(moment for moment in moments if moment is not None)])
            yield None
        yield Sample((), max(0.0, next_ms - self._clock.now_ms()) / 1000)

    def _damaged_ranges(self) -> Iterator[Sample | None]:
        parts = self._table.in_parts()
        return total(sum([len(partition.log.state_file.state.damaged) for partition in part]) for part in parts)

    def _certificate_end(self) -> Iterator[Sample]:
        if self.tls is not None:
            yield Sample((), min(certificate.ends_ms for certificate in self.tls.certificates) / 1000)


def _resident_memory() -> Iterator[Sample]:
    """What Linux says of this process; other systems have no such file, and then there is no sample."""
    with contextlib.suppress(OSError):
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - a file of the kernel, read at once
            pages = int(file.read().split()[1])
        yield Sample((), pages * os.sysconf("SC_PAGE_SIZE"))


def one(value: Callable[[], float]) -> Source:
    """The source of a family without labels."""
    return lambda: (Sample((), value()),)


def total(counts: Iterable[int]) -> Iterator[Sample | None]:
    """The sum of ``counts``, after a pause behind each of them."""
    value = 0
    for count in counts:
        value += count
        yield None
    yield Sample((), value)


def by_label(counts: Mapping[str, float]) -> Source:
    """A sample for each value of the one label."""
    return lambda: [Sample((label,), count) for label, count in sorted(counts.items())]


def buckets(histogram: Histogram) -> Buckets:
    """What it has counted so far."""
    return Buckets(histogram.bounds, tuple(histogram.counts), histogram.sum)


_COUNTERS: Final = (
    "append_bytes duplicates fetch_bytes fetches_waited cold_reads fsyncs authorization_refusals "
    "tls_handshakes_failed segments_rolled segments_expired expired_bytes partitions_recovered "
    "recovery_bytes compaction_read_bytes compaction_written_bytes scrubbed_segments scrubbed_bytes "
    "scrub_passes scrub_findings"
)
"""Counts of ``Metrics`` that are families of counters, by their names there."""


def backup_sources(backup: BackupProgress | None) -> Mapping[str, Source]:
    """Sources of the families of a continuous backup; they have no samples without one."""

    def of(value: Callable[[BackupStatus], float]) -> Source:
        return (lambda: ()) if backup is None else one(lambda: value(backup.status()))

    return {
        "seglog_backup_loss_seconds": of(lambda status: status.lost_ms / 1000),
        "seglog_backup_loss_limit_seconds": of(lambda status: status.lag_ms / 1000),
        "seglog_backup_loss_records": of(lambda status: status.lost_records),
        "seglog_backup_loss_bytes": of(lambda status: status.lost_bytes),
        "seglog_backup_held_up": of(lambda status: int(status.reason is not None)),
        "seglog_backup_published_timestamp_seconds": of(lambda status: (status.published_ms or 0) / 1000),
        "seglog_backup_written_bytes_total": of(lambda status: status.written_bytes),
    }


def counted_sources(metrics: Metrics) -> Mapping[str, Source]:
    """What makes the samples of each of these families."""
    loop = metrics.loop
    return {
        **{f"seglog_{name}_total": one(partial(getattr, metrics, name)) for name in _COUNTERS.split()},
        "seglog_requests_total": _by_api(metrics, lambda api: api.requests),
        "seglog_request_errors_total": lambda: _errors(metrics),
        "seglog_request_bytes_total": _by_api(metrics, lambda api: api.request_bytes),
        "seglog_response_bytes_total": _by_api(metrics, lambda api: api.response_bytes),
        "seglog_request_duration_seconds": _by_api(metrics, lambda api: buckets(api.seconds)),
        "seglog_append_batches_total": by_label(metrics.appends),
        "seglog_not_durable_bytes": one(lambda: metrics.not_durable.size),
        "seglog_not_durable_seconds": one(metrics.not_durable.age_seconds),
        "seglog_fsync_duration_seconds": lambda: (Sample((), buckets(metrics.fsync_seconds)),),
        "seglog_loop_busy_seconds_total": one(lambda: loop.busy_seconds),
        "seglog_loop_turns_total": one(lambda: loop.turns),
        "seglog_loop_longest_turn_seconds": one(lambda: loop.longest_turn.at(perf_counter())),
        "seglog_loop_longest_stall_seconds": one(lambda: loop.longest_stall.at(perf_counter())),
        "seglog_connections": _by_listener(metrics, lambda listener: listener.connections),
        "seglog_connections_accepted_total": _by_listener(metrics, lambda listener: listener.connections_accepted),
        "seglog_connections_muted": one(lambda: len(metrics.muted)),
        "seglog_quota_throttles_total": by_label(metrics.quota_throttles),
        "seglog_quota_throttle_seconds_total": by_label(metrics.quota_throttle_seconds),
        "seglog_connections_ended_total": by_label(metrics.connections_ended),
        "seglog_authentications_total": _by_mechanism(metrics, lambda listener: listener.authentications),
        "seglog_authentication_failures_total": _by_mechanism(
            metrics, lambda listener: listener.authentication_failures
        ),
        "seglog_compactions_total": by_label(metrics.compactions),
        "seglog_scrub_pass_ratio": one(lambda: metrics.scrub_pass_ratio),
        "seglog_scrub_last_pass_timestamp_seconds": one(lambda: metrics.scrub_last_pass_ms / 1000),
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


class TransactionSources:
    """Reads the transactions of a broker, whenever it is asked."""

    def __init__(self, transactions: TransactionService) -> None:
        self._transactions: Final = transactions

    def sources(self) -> Mapping[str, Source]:
        """What makes the samples of each of these families."""
        transactions = self._transactions
        return {
            "seglog_transactional_ids": one(lambda: transactions.count),
            "seglog_transactions_open": one(lambda: len(transactions.open)),
            "seglog_transaction_oldest_seconds": one(transactions.oldest_seconds),
            "seglog_transactions_ended_total": by_label(transactions.open.ended),
            "seglog_transaction_markers_waiting": one(lambda: transactions.markers.waiting),
            "seglog_transactions_held_up": one(lambda: len(transactions.markers.all_held_up())),
            "seglog_transactions_hanging": lambda: total(found is not None for found in transactions.hanging()),
            "seglog_partitions_held_back": lambda: total(transactions.open.held_back()),
        }

    def problems(self) -> Iterator[Problem | None]:
        """A problem for each transaction that cannot be ended, or that nothing will end; None is a pause."""
        for ending, left, error in self._transactions.markers.all_held_up()[:TOLD_MAX]:
            decided = "committed" if ending.is_commit else "aborted"
            yield Problem(
                "transaction",
                f"the transaction of {ending.transactional_id[:NAME_CHARACTERS_TOLD]} is {decided}, and its end is "
                f"held up in {counted(left, 'partition')}, where it is tried again: {error.message}",
            )
        told = 0
        for found in self._transactions.hanging():
            if found is not None:
                told += 1
                if told > TOLD_MAX:
                    return
            yield None if found is None else Problem("transaction", _in_words(found))


def _in_words(found: Hanging) -> str:
    topic, number, transaction = found
    first_offset = transaction.first_offset
    return (
        f"{topic}-{number} has a hanging transaction: producer {transaction.producer_id} began it at offset "
        f"{first_offset}, its last batch is of {time_text(transaction.last_timestamp)}, and no transactional id will "
        f"end it, so that readers at read_committed stay there: abort it by `seglog transaction abort-hanging {topic} "
        f"{number} {first_offset}`"
    )
