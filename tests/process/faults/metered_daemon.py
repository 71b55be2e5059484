"""The daemon as its arguments name it, whose metrics begin anew whenever they are read.

``python -m tests.process.faults.metered_daemon python -m seglog_broker ...``: so a test learns the longest turn of the
loop, and the longest collection of garbage, of each request by itself.
"""

import gc
import runpy
import sys
import time
from typing import Any

from seglog_broker.api.broker import Broker
from seglog_protocol.messages import MetricsReply

_read_metrics = Broker.read_metrics
_collection_began = _longest_collection = 0.0


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    global _collection_began, _longest_collection
    if phase == "start":
        _collection_began = time.thread_time()
    else:
        _longest_collection = max(_longest_collection, time.thread_time() - _collection_began)


def _read_anew(self: Broker) -> MetricsReply:
    global _longest_collection
    found = MetricsReply(_read_metrics(self).metrics | {"collection_seconds": _longest_collection})
    loop = self.metrics.loop
    loop.busy_seconds_max = loop.stall_seconds_max = _longest_collection = 0.0
    return found


def main() -> None:
    """Run the module behind ``python -m`` with its arguments."""
    replaced: Any = _read_anew
    Broker.read_metrics = replaced  # type: ignore[method-assign]
    gc.callbacks.append(_note_collection)
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
