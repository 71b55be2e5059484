"""How many connections there may be, in all, of a listener and of an address, and how fast new ones may come.

Kafka's limits: a listener that has too many, or gets them too fast, accepts no more for a while. A connection of an
address that has too many is closed; where they come too fast, it is closed when the address may try again.
"""

from collections import Counter
from typing import Final

import trio

from seglog_broker.config.client_quotas import Limit
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import HTTP, Metrics
from seglog_broker.runtime.usage_buckets import UsageBuckets
from seglog_protocol.quotas import CONNECTION_CREATION_RATE

UNLIMITED: Final = 2**31 - 1
"""Kafka's default of these limits."""

LOOK_SECONDS: Final = 1.0
"""A listener that waits for a place looks so often, as another limit may be in force."""


class ConnectionLimits:
    """Those of a broker. The listener for HTTP has none of them."""

    def __init__(self, live: LiveConfig, metrics: Metrics, buckets: UsageBuckets) -> None:
        self._live = live
        self._metrics = metrics
        self._buckets = buckets
        self._addresses: Counter[str] = Counter()  # open connections
        self._ended = trio.lowlevel.ParkingLot()

    def wait(self, listener: str, label: str, now: float) -> float:
        """Count a new connection; the seconds that its listener is to accept no other one, a window at most."""
        longest = 0.0
        config = self._live.current
        own = config.of_listener(listener).max_connection_creation_rate
        for name, limit in (("", config.max_connection_creation_rate), (label, own)):
            counted = None if limit == UNLIMITED else Limit(limit, CONNECTION_CREATION_RATE, name, "")
            if (bucket := self._buckets.bucket(counted, now)) is not None:
                bucket.take(1, now)
                longest = max(longest, bucket.wait(now))
        return min(longest, config.quota_window_size_seconds)

    async def take_place(self, listener: str, label: str) -> None:
        """Wait while there are too many connections."""
        while not self._has_place(listener, label):
            with trio.move_on_after(LOOK_SECONDS):
                await self._ended.park()

    def _has_place(self, listener: str, label: str) -> bool:
        counts = self._metrics.listeners
        if self._metrics.listener(label).connections >= self._live.current.of_listener(listener).max_connections:
            return False
        count = sum([counted.connections for name, counted in counts.items() if name != HTTP])
        return count < self._live.current.max_connections

    def throttle(self, address: str, now: float) -> float:
        """Count a new connection of an address; the seconds until it may try again, 0 where it may connect now."""
        bucket = self._buckets.bucket(self._live.quotas.limit_of_connections(address), now)
        if bucket is None:
            return 0.0
        seconds = self._buckets.throttle(bucket, now, 1)
        if not seconds:  # else it is closed
            bucket.take(1, now)
        return seconds

    def why_too_many(self, address: str) -> str | None:
        """Why an address may have no other connection; None if it may."""
        config = self._live.current
        overrides = dict(each.rsplit(":", 1) for each in config.max_connections_per_ip_overrides)
        limit = int(overrides.get(address, config.max_connections_per_ip))
        if self._addresses[address] < limit:
            return None
        return f"its address has {limit} connections, which is its limit (max.connections.per.ip, or its overrides)"

    def note_begun(self, address: str) -> None:
        """A connection is open."""
        self._addresses[address] += 1

    def note_ended(self, address: str) -> None:
        """It has ended."""
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self._ended.unpark_all()
