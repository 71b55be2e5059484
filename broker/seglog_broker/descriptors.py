"""How many files and sockets the process may open, and how they are shared between logs and connections.

Segment files and index maps have ``seglog.handles.max``, a reserve is for everything else the daemon does, and
connections get the rest: so however many clients come, logs can be read and written and an operator can be answered.
"""

import resource
from contextlib import suppress
from typing import Final

from seglog_broker.config import BrokerConfig

RESERVED: Final = 128
"""For checkpoints, directories that are synced, writers in excess of the pool, compaction, refusals, Python itself."""

CONNECTIONS_MIN: Final = 16
"""Allowed at least, however few descriptors there are."""


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
            f"seglog.connections.max = {config.seglog_connections_max}, beside seglog.handles.max = "
            f"{config.seglog_handles_max} and {RESERVED} for other things; raise the limit or lower the keys"
        )
    ]


def connections_max(config: BrokerConfig) -> int:
    """``seglog.connections.max``, or fewer where the process may not open enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config.seglog_connections_max
    left = soft - config.seglog_handles_max - RESERVED
    return min(config.seglog_connections_max, max(CONNECTIONS_MIN, left))
