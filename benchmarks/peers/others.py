"""Clients that append and fetch at a steady pace, and what they notice of a load beside them."""

import time
from typing import Any, Final

from benchmarks.batches import one_record
from benchmarks.harness import MIB
from benchmarks.raw_client import Connection, append_frame, exchange, fetch_frame

OTHER: Final = "bench-others"
KINDS: Final = ("append", "fetch")


def others(connection: Connection, ends: float, pace_seconds: float) -> dict[str, Any]:
    """Append and fetch in turn, at a pace, so that waiting for one is not hidden by sending fewer."""
    buffer = memoryview(bytearray(MIB))
    frames = (append_frame(OTHER, [one_record()], "os"), fetch_frame(OTHER, 0, partition_bytes=1))
    times: dict[str, Any] = {kind: [] for kind in KINDS}
    clock = time.perf_counter
    due, number = clock(), 0
    while due < ends:
        ahead = due - clock()
        if ahead > 0:
            time.sleep(ahead)
            began = clock()
        else:
            began = due  # late because the one before took long: that counts
        exchange(connection.sock, frames[number % 2], buffer)
        times[KINDS[number % 2]].append(clock() - began)
        number += 1
        due += pace_seconds
    return times
