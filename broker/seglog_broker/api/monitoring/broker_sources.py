"""The families that have samples of the broker as a whole, and what each is read from."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import trio

from seglog_broker.api.fetch import FetchService
from seglog_broker.api.monitoring.counted_sources import counted_sources, one
from seglog_broker.api.monitoring.forecast import DiskForecast
from seglog_broker.api.monitoring.problems import Problems
from seglog_broker.api.monitoring.samples import Sample
from seglog_broker.api.monitoring.slicing import Source
from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.recoveries import Recoveries, Views
from seglog_broker.runtime import logs
from seglog_broker.runtime.descriptors import connections_max, handles_max
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.request_memory import RequestMemory
from seglog_broker.runtime.response_memory import ResponseMemory
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.security.tls import ServerTls
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.version import VERSION


@dataclass(eq=False)
class BrokerSources:
    """Reads the state of a broker, whenever it is asked; ``sources`` are its families by name."""

    config: LiveConfig
    clock: Clock
    clock_trust: ClockTrust
    directory: LogDirectory
    partitions: PartitionTable
    recoveries: Recoveries
    views: Views
    metrics: Metrics
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
            **counted_sources(self.metrics),
            **self._of_bounds(),
            **self._of_the_directory(),
        }

    def _of_the_process(self) -> dict[str, Source]:
        return {
            "seglog_build_info": self._build_info,
            "seglog_start_time_seconds": one(lambda: self.started_ms / 1000),
            "seglog_uptime_seconds": one(lambda: max(0, self.clock.now_ms() - self.started_ms) / 1000),
            "seglog_problems": self._problems,
            "seglog_process_cpu_seconds_total": one(time.process_time),
            "seglog_process_resident_memory_bytes": _resident_memory,
            "seglog_log_lines_lost_total": one(logs.lines_lost),
        }

    def _of_bounds(self) -> dict[str, Source]:
        handles = self.directory.handles
        return {
            "seglog_fetches_waiting": one(lambda: self.fetches.waiting),
            "seglog_connections_limit": one(lambda: connections_max(self.config.current)),
            "seglog_request_memory_bytes": one(lambda: self.request_memory.used),
            "seglog_request_memory_limit_bytes": one(lambda: self.request_memory.limit),
            "seglog_request_memory_waiting": one(lambda: self.request_memory.waiting),
            "seglog_request_memory_waits_total": one(lambda: self.request_memory.waits),
            "seglog_response_memory_bytes": one(lambda: self.response_memory.used),
            "seglog_answers_waiting": one(lambda: len(self.transfers)),
            "seglog_open_files": one(lambda: handles.open_count),
            "seglog_open_files_limit": one(lambda: handles_max(self.config.current)),
        }

    def _of_the_directory(self) -> dict[str, Source]:
        space = self.directory.space
        return {
            "seglog_topics": one(lambda: len(self.directory.registry.topics)),
            "seglog_partitions": self._partitions_by_state,
            "seglog_recovery_ratio": one(lambda: self.recoveries.ratio),
            "seglog_disk_size_bytes": one(lambda: space.total),
            "seglog_disk_free_bytes": one(lambda: space.free),
            "seglog_disk_free_inodes": one(lambda: -1 if space.inodes is None else space.inodes.free),
            "seglog_disk_full": one(lambda: int(space.is_full)),
            "seglog_disk_full_in_seconds": one(lambda: self.forecast.full_in_seconds(trio.current_time())),
            "seglog_ballast_bytes": one(lambda: space.ballast),
            "seglog_retention_next_loss_seconds": self._seconds_to_next_expiry,
            "seglog_damaged_ranges": self._damaged_ranges,
            "seglog_clock_untrusted": one(lambda: int(self.clock_trust.is_held)),
            "seglog_certificate_expiry_timestamp_seconds": self._certificate_end,
        }

    def _build_info(self) -> Iterator[Sample]:
        yield Sample((VERSION, self.build, sys.version.split()[0]), 1)

    def _problems(self) -> Iterator[Sample | None]:
        count = 0
        for problem in self.problems.found():
            count += problem is not None
            yield None
        yield Sample((), count)

    def _partitions_by_state(self) -> Iterator[Sample | None]:
        read_only = len(self.views)
        served = 0
        for part in self.partitions.in_parts():
            served += len(part)
            read_only += sum([partition.log.state_file.state.read_only is not None for partition in part])
            yield None
        yield Sample(("serving",), served - read_only + len(self.views))
        yield Sample(("recovering",), len(self.recoveries) - len(self.views))
        yield Sample(("offline",), len(self.directory.report.offline))
        yield Sample(("read_only",), read_only)

    def _seconds_to_next_expiry(self) -> Iterator[Sample | None]:
        next_ms = math.inf
        for part in self.partitions.in_parts():
            moments = [partition.next_expiry_ms for partition in part]
            next_ms = min([next_ms, *(moment for moment in moments if moment is not None)])
            yield None
        yield Sample((), max(0.0, next_ms - self.clock.now_ms()) / 1000)

    def _damaged_ranges(self) -> Iterator[Sample | None]:
        count = 0
        for part in self.partitions.in_parts():
            count += sum([len(partition.log.state_file.state.damaged) for partition in part])
            yield None
        yield Sample((), count)

    def _certificate_end(self) -> Iterator[Sample]:
        if self.tls is not None:
            yield Sample((), min(certificate.ends_ms for certificate in self.tls.certificates) / 1000)


def _resident_memory() -> Iterator[Sample]:
    """What Linux says of this process; other systems have no such file, and then there is no sample."""
    with contextlib.suppress(OSError):
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - a file of the kernel, read at once
            pages = int(file.read().split()[1])
        yield Sample((), pages * os.sysconf("SC_PAGE_SIZE"))
