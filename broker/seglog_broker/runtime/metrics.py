"""Metrics that the loop updates, of broker, listeners and the loop itself; docs/METRICS.md has the families."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Final

from seglog_broker.runtime.histogram import Histogram
from seglog_protocol.quotas import KEYS

NATIVE: Final = "native"
"""The label of the listener of our own protocol; one of Kafka's has its configured name, in capitals."""

HTTP: Final = "http"
"""The label of the listener for HTTP."""


UNKNOWN: Final = "unknown"
"""The label of requests whose api the protocol does not have."""


class ApiMetrics:
    """Counts of the requests of one api on one listener."""

    def __init__(self, api: str) -> None:
        """``api`` is the name of Kafka's ApiKey, such as ``Produce``, or that of a native api, such as ``append``.

        What is carried in a native request of the api ``kafka`` is named as Kafka does.
        """
        self.api = api
        self.requests = 0
        """Received, as soon as it is known what they ask."""
        self.request_bytes = 0
        self.response_bytes = 0
        """With the records in them."""
        self.errors: Counter[str] = Counter()
        """In answers, those of single partitions included, by the code of the wire."""
        self.seconds = Histogram()
        """From the moment a request is taken up until its answer is queued; what it waits for is part of it. What gets
        no answer, because its peer has left, is not counted."""

    def note_request(self, size: int) -> None:
        """Count a request, whose frame has ``size`` bytes."""
        self.requests += 1
        self.request_bytes += size

    def note_answers(self, count: int, size: int, began: float) -> None:
        """Count answers of ``size`` bytes together to requests that were taken up at ``began``, by ``perf_counter``."""
        self.response_bytes += size
        self.seconds.add_many(perf_counter() - began, count)


class ListenerMetrics:
    """Counts of one listener. Its names of apis are those of its protocol, which bounds them."""

    def __init__(self, name: str) -> None:
        """``name`` is the label ``listener``."""
        self.name = name
        self.apis: dict[str, ApiMetrics] = {}
        """Of each api that was asked for, by its name."""
        self.errors: Counter[str] = Counter()
        """In the last frames of connections, which answer no request, by code; the label ``api`` is empty."""
        self.connections = 0
        """Open now."""
        self.connections_accepted = 0
        """Without those that were refused because there were too many."""
        self.authentications: Counter[str] = Counter()
        """Clients that have proven who they are, by mechanism; TLS for a certificate."""
        self.authentication_failures: Counter[str] = Counter()
        """Proofs that were refused, by mechanism."""

    def of(self, api: str) -> ApiMetrics:
        """The counts of an api."""
        found = self.apis.get(api)
        if found is None:
            found = self.apis[api] = ApiMetrics(api)
        return found


@cache
def flat_name(api: str) -> str:
    """The name of an api in the flat reply to ``metrics``: of Kafka's ListOffsets ``kafka_list_offsets``.

    Produce is an ``append`` there, and a page over HTTP is ``http_metrics``.
    """
    if api.startswith("/"):
        return f"http_{api[1:]}"
    if api == "Produce":
        return "append"
    return "kafka_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).lower() if api[:1].isupper() else api


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
        self.quota_throttles = Counter(dict.fromkeys(KEYS, 0))  # of clients, by quota
        self.quota_throttle_seconds = dict.fromkeys(KEYS, 0.0)
        self.muted: set[object] = set()  # connections that are not read because of a quota

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


SLOT_SECONDS: Final = 5.0
SLOTS: Final = 12
"""A minute, beside the one that is being filled."""


class RecentMax:
    """The largest of the values of the last minute, and of up to SLOT_SECONDS before."""

    __slots__ = ("_current", "_ends_at", "_maxima")

    def __init__(self) -> None:
        self._maxima = [0.0] * SLOTS
        self._current = 0.0  # of the slot that is being filled
        self._ends_at = 0.0

    def add(self, value: float, now: float) -> None:
        """Note a value, not below 0, at a moment in seconds of a clock that never goes back."""
        if now >= self._ends_at:
            self._begin_slot(now)
        self._current = max(self._current, value)

    def at(self, now: float) -> float:
        """The largest value; 0 if there was none."""
        if now >= self._ends_at:
            self._begin_slot(now)
        return max(self._current, *self._maxima)

    def _begin_slot(self, now: float) -> None:
        passed = 1 + int((now - self._ends_at) / SLOT_SECONDS)
        self._maxima = [*self._maxima, self._current, *[0.0] * min(passed - 1, SLOTS)][-SLOTS:]
        self._current = 0.0
        self._ends_at += passed * SLOT_SECONDS


class LoopMetrics:
    """Counts of the loop since the start. A turn is what it does between two looks at the network."""

    def __init__(self) -> None:
        self.turns = 0
        self.busy_seconds = 0.0
        """Processor time of all turns."""
        self.busy_seconds_max = 0.0
        """Processor time of the longest turn since the start."""
        self.stall_seconds_max = 0.0
        """The longest time between two looks since the start."""
        self.longest_turn = RecentMax()
        """Processor time of a turn, in seconds, by ``time.perf_counter``."""
        self.longest_stall = RecentMax()
        """Time of a turn, in seconds, by ``time.perf_counter``."""

    def add_turn(self, busy_seconds: float, stall_seconds: float, now: float) -> None:
        """Count a turn that ended at ``now``: its processor time, and its time by the clock."""
        self.turns += 1
        self.busy_seconds += busy_seconds
        self.busy_seconds_max = max(self.busy_seconds_max, busy_seconds)
        self.stall_seconds_max = max(self.stall_seconds_max, stall_seconds)
        self.longest_turn.add(busy_seconds, now)
        self.longest_stall.add(stall_seconds, now)


class NotDurable:
    """Those of all partitions."""

    def __init__(self, seconds: Callable[[], float] = perf_counter) -> None:
        """``seconds`` is a clock that never goes back."""
        self.seconds = seconds
        self.size = 0
        """Bytes of record batches."""
        self.since: dict[NotDurablePart, float] = {}
        """When the oldest of them was appended, of each partition that has some."""

    def age_seconds(self) -> float:
        """How old the oldest of them is; 0 if there are none."""
        return max(0.0, self.seconds() - min(self.since.values())) if self.since else 0.0


class NotDurablePart:
    """Those of one partition: what came since the flush under way began, and what that flush is about."""

    __slots__ = ("_all", "_flushing", "_new", "_new_since")

    def __init__(self, all_parts: NotDurable) -> None:
        self._all = all_parts
        self._new = 0
        self._new_since = 0.0
        self._flushing = 0

    @property
    def size(self) -> int:
        """Bytes of record batches."""
        return self._new + self._flushing

    def add(self, size: int) -> None:
        """Batches of ``size`` bytes together were appended."""
        if not self._new:
            self._new_since = self._all.seconds()
            if not self._flushing:
                self._all.since[self] = self._new_since
        self._new += size
        self._all.size += size

    def begin_flush(self) -> None:
        """A flush of everything has begun."""
        self._flushing += self._new
        self._new = 0

    def end_flush(self, *, is_durable: bool) -> None:
        """It has ended; ``is_durable`` if it succeeded."""
        if not self._flushing:
            return
        if not is_durable:
            self._new += self._flushing
            self._flushing = 0
            self._new_since = self._all.since[self]
            return
        self._all.size -= self._flushing
        self._flushing = 0
        if self._new:
            self._all.since[self] = self._new_since
        else:
            del self._all.since[self]

    def clear(self) -> None:
        """All is on the disk, or deleted."""
        self._all.size -= self._new + self._flushing
        self._new = self._flushing = 0
        self._all.since.pop(self, None)
