"""The process's file descriptors, and their division between logs and connections.

Segment files and index maps have ``seglog.handles.max``, a reserve is for everything else, and connections get the
rest. So with any number of clients, logs can be read and written, operators get replies, and the broker can stop
cleanly.
"""

import os
import resource
import sys
from contextlib import suppress
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_broker.storage.io.handle_pool import EXCESS_MAX

RESERVED: Final = 128
"""For checkpoints, syncs of directories, writers in excess of the pool, compaction, refusals, Python itself."""

CONNECTIONS_MIN: Final = 16
HANDLES_MIN: Final = 16
"""The least number of connections, and of segment files and maps, however few descriptors there are."""

HANDLES_OF_FEW: Final = 512
HANDLES_SHARE: Final = 8
"""Segment files and maps get ``HANDLES_OF_FEW``, or one of so many descriptors if that is more: where there are few,
most are for connections."""

EXCESS_MIN: Final = 8
OTHERS_MIN: Final = 64
"""``OTHERS_MIN`` descriptors are always left for everything but logs: connections, the stop, Python itself.
``EXCESS_MIN`` is the least excess over ``seglog.handles.max`` that logs are allowed."""

STOP_RESERVE: Final = 16
"""The part of ``RESERVED`` for the stop alone: the excess of ``HandlePool`` then, a directory, a checkpoint."""


def raise_limit(config: BrokerConfig) -> list[str]:
    """Raise the soft limit to the hard limit; return a warning if that is fewer than the configuration needs."""
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


def _soft_limit() -> int:
    """The process's limit of descriptors, or a number beyond any where it has none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def connections_max(config: BrokerConfig) -> int:
    """``seglog.connections.max``, or fewer if descriptors do not suffice."""
    left = _soft_limit() - handles_max(config) - RESERVED
    return min(config.seglog_connections_max, max(CONNECTIONS_MIN, left))


def handles_max(config: BrokerConfig) -> int:
    """``seglog.handles.max``, or fewer if descriptors do not suffice; CONNECTIONS_MIN are left for connections."""
    soft = _soft_limit()
    share = max(HANDLES_OF_FEW, soft // HANDLES_SHARE)
    return min(config.seglog_handles_max, share, max(HANDLES_MIN, soft - RESERVED - CONNECTIONS_MIN))


def handles_excess_max(config: BrokerConfig) -> int:
    """How many more segment files and index maps may be opened while all are in use."""
    return min(EXCESS_MAX, max(EXCESS_MIN, _soft_limit() - OTHERS_MIN - handles_max(config)))


class StopReserve:
    """Descriptors reserved for the stop, which must open files even if clients use all others.

    ``release`` gives them back, for the stop to use.
    """

    def __init__(self) -> None:
        """Reserve ``STOP_RESERVE``, but at most an eighth of the limit."""
        count = min(STOP_RESERVE, _soft_limit() // 8)
        self._descriptors: list[int] = []
        with suppress(OSError):
            for _ in range(count):
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> None:
        """Close them all. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())
