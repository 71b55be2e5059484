"""The broker's metrics: numbers that the loop updates, from which the families of docs/METRICS.md are read."""

from collections import Counter

from seglog_broker.runtime.histogram import Histogram
from seglog_broker.runtime.loop_metrics import LoopMetrics
from seglog_broker.runtime.not_durable import NotDurable
from seglog_broker.runtime.request_metrics import ListenerMetrics, flat_name


class Metrics:
    """Counts since the start. Everything runs on the loop, so there are no locks."""

    def __init__(self) -> None:
        self.listeners: dict[str, ListenerMetrics] = {}
        """By name."""
        self.loop = LoopMetrics()
        self.not_durable = NotDurable()
        self.appends: Counter[str] = Counter()  # batches, by ack level
        self.append_bytes = 0
        self.duplicates = 0  # batches that were in the log already and not written again
        self.fetch_bytes = 0
        self.fetches_waited = 0  # fetches that had to wait for records
        self.cold_reads = 0  # reads that a seek had to wait for
        self.fsyncs = 0
        self.fsync_seconds_max = 0.0
        self.fsync_seconds = Histogram()  # of each round of fsyncs, which run side by side
        self.segments_rolled = 0
        self.segments_expired = 0
        self.expired_bytes = 0  # of their .log files
        self.partitions_recovered = 0
        self.recovery_bytes = 0  # read by the start, and by recovery workers
        self.compactions = Counter({"done": 0, "failed": 0})  # rounds that ended; from 0 on, so that a first one shows
        self.compaction_read_bytes = 0
        self.compaction_written_bytes = 0
        self.scrubbed_segments = 0
        self.scrubbed_bytes = 0
        self.scrub_findings = 0
        self.scrub_passes = 0
        self.scrub_pass_ratio = 0.0  # of the current pass, or of the last one
        self.scrub_last_pass_ms = 0  # when the last pass ended, wall time; 0 before the first
        self.connections_ended: Counter[str] = Counter()  # by the broker, by reason
        self.authorization_refusals = 0
        self.tls_handshakes_failed = 0

    def listener(self, name: str) -> ListenerMetrics:
        """The counts of a listener, by the name that is its label."""
        found = self.listeners.get(name)
        if found is None:
            found = self.listeners[name] = ListenerMetrics(name)
        return found

    @property
    def requests(self) -> Counter[str]:
        """Requests of all listeners, by the flat names of their apis."""
        counts: Counter[str] = Counter()
        for listener in self.listeners.values():
            for api in listener.apis.values():
                if api.requests:
                    counts[flat_name(api.api)] += api.requests
        return counts

    @property
    def requests_total(self) -> int:
        """Requests of all listeners and apis."""
        total = 0
        for listener in self.listeners.values():
            for api in listener.apis.values():
                total += api.requests
        return total

    @property
    def request_errors(self) -> Counter[str]:
        """Errors in answers of all listeners, by code."""
        counts: Counter[str] = Counter()
        for listener in self.listeners.values():
            counts += listener.errors
            for api in listener.apis.values():
                counts += api.errors
        return counts

    @property
    def connections_open(self) -> int:
        """Of all listeners."""
        return sum([listener.connections for listener in self.listeners.values()])

    def note_flushes(self, count: int, seconds: float) -> None:
        """Count flushes that ran side by side, and together took ``seconds``."""
        self.fsyncs += count
        self.fsync_seconds_max = max(self.fsync_seconds_max, seconds)
        self.fsync_seconds.add(seconds)
