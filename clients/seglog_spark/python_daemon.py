"""pyspark's daemons of Python workers, whose workers end without a traceback and collect little garbage.

Spark closes the socket of a worker that had nothing to do for a minute. The worker then cannot flush it, and pyspark's
daemon prints a traceback of BrokenPipeError, though no query has failed. ``python -m seglog_spark.python_daemon`` is
the daemon of workers that run tasks, where ``spark.python.daemon.module`` names it. Those that plan always have
pyspark's own.

Behind each task pyspark collects the garbage among all objects, most of which are modules that stay: 30 ms. So what a
worker has imported for its first task is frozen.
"""

import gc
import socket
import sys
from collections.abc import Callable

PYSPARKS_OWN = "pyspark.daemon"


def ending_quietly(work: Callable[[socket.socket, bool], int]) -> Callable[[socket.socket, bool], int]:
    """``pyspark.daemon.worker``, which ends with a code of its own where Spark has closed the socket.

    What is there behind the first task is no longer looked at for garbage.
    """
    is_frozen = False

    def worker(sock: socket.socket, authenticated: bool) -> int:
        nonlocal is_frozen
        try:
            return work(sock, authenticated)
        except BrokenPipeError:
            return 1  # which has the daemon end this worker
        finally:
            if not is_frozen:
                gc.collect()
                gc.freeze()
                is_frozen = True

    return worker


def end_quietly() -> None:
    """Have the worker that this process may be end quietly, too, from its next request on."""
    running = sys.modules["__main__"]
    if running.__spec__ is not None and running.__spec__.name == PYSPARKS_OWN:
        running.worker = ending_quietly(running.worker)  # type: ignore[attr-defined]


if __name__ == "__main__":
    from pyspark import daemon

    daemon.worker = ending_quietly(daemon.worker)
    daemon.manager()
