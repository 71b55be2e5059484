"""How many files and sockets the process may open, and how they are shared between logs and connections.

Segment files and index maps have ``seglog.handles.max``, a reserve is for everything else the daemon does, and
connections get the rest: so however many clients come, logs can be read and written, an operator can be answered, and
the broker can be stopped in good order.
"""

import os
import resource
from contextlib import suppress
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_broker.storage.io.handle_pool import EXCESS_MAX

RESERVED: Final = 128
"""For checkpoints, directories that are synced, writers in excess of the pool, compaction, refusals, Python itself."""

CONNECTIONS_MIN: Final = 16
HANDLES_MIN: Final = 16
"""Connections, and files and maps of segments, allowed at least, however few descriptors there are."""

EXCESS_MIN: Final = 8
OTHERS_MIN: Final = 64
"""Left to all but logs in any case: connections, the stop, Python itself; and what logs may then exceed theirs by."""

STOP_RESERVE: Final = 16
"""Of ``RESERVED``, for the stop alone: what ``HandlePool`` opens in excess then, a directory, a checkpoint."""


def raise_limit(config: BrokerConfig) -> list[str]:
    """Take as many descriptors as the system grants; a warning when that is fewer than the configuration counts on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    possible = connections_max(config)
    if possible == config.seglog_connections_max:
        return []
    return [
        (
            f"only {hard} open files are granted (ulimit -n): that leaves {possible} connections in place of "
            f"seglog.connections.max = {config.seglog_connections_max}, beside {handles_max(config)} segment files and "
            f"index maps (seglog.handles.max) and {RESERVED} for other things; raise the limit or lower the keys"
        )
    ]


def connections_max(config: BrokerConfig) -> int:
    """``seglog.connections.max``, or fewer where the process may not open enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config.seglog_connections_max
    left = soft - handles_max(config) - RESERVED
    return min(config.seglog_connections_max, max(CONNECTIONS_MIN, left))


def handles_max(config: BrokerConfig) -> int:
    """``seglog.handles.max``, or fewer where the process may not open enough: a few connections must be left room."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config.seglog_handles_max
    return min(config.seglog_handles_max, max(HANDLES_MIN, soft - RESERVED - CONNECTIONS_MIN))


def handles_excess_max(config: BrokerConfig) -> int:
    """How many more segment files and index maps may be open while all are in use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return EXCESS_MAX
    return min(EXCESS_MAX, max(EXCESS_MIN, soft - OTHERS_MIN - handles_max(config)))


class StopReserve:
    """Descriptors held for the stop, which opens files and must not find that all are taken.

    ``release`` gives them back, for the stop to use.
    """

    def __init__(self) -> None:
        """Takes ``STOP_RESERVE``, or fewer where even those are many."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = STOP_RESERVE if soft == resource.RLIM_INFINITY else min(STOP_RESERVE, soft // 8)
        self._descriptors: list[int] = []
        with suppress(OSError):
            for _ in range(count):
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> None:
        """Close them all. A second release does nothing."""
        while self._descriptors:
            os.close(self._descriptors.pop())
