"""Hostile peers beside a healthy client: what the tests of the native port and of Kafka's port share.

The effect on other clients is measured by ``loop_busy_seconds``: the most *processor time* that the loop took between
two polls of the network. So the test does not depend on the clock, nor on other load of the machine, which makes
processors up to three times slower. The stall by the clock and the latencies of the healthy client are printed, without
a limit.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import seglog
from seglog_broker.config import load_config
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX, RESPONSES_BYTES_MAX
from tests.processes import PACKAGES, Daemon, clean_environment
from tests.support import REPOSITORY, numbers_of
from tests.turns import judge_turn, reference_seconds

MEMORY_MIB_MAX: Final = 700
"""A budget of 256 MiB for requests, what they are decoded to, and what a broker takes anyway. The budgets allow twice
as much together, which these peers do not use."""
SETTINGS: Final = ("--set", "auto.create.topics.enable=false", "--set", "num.partitions=4")


class Healthy(threading.Thread):
    """A client that appends a record and fetches it, again and again, and notes how long that took (seconds)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.latencies: list[float] = []
        self.error: BaseException | None = None
        self.is_wanted = True

    def run(self) -> None:
        """Go round until it is not wanted any more, and keep the error that ends it."""
        try:
            while self.is_wanted:
                began = time.perf_counter()
                self.append_and_fetch()
                self.latencies.append(time.perf_counter() - began)
                time.sleep(0.002)
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.error = error
        finally:
            self.close()

    def p99(self, since: int) -> float:
        """Milliseconds, of what was measured after so many."""
        measured = sorted(self.latencies[since:])
        return measured[len(measured) * 99 // 100] * 1000 if measured else float("nan")

    def append_and_fetch(self) -> None:
        """Append to the topic ``healthy``, and fetch that, in a subclass."""
        raise NotImplementedError

    def close(self) -> None:
        """Close its connection, in a subclass."""
        raise NotImplementedError


def memory_mib(process: int, kind: str) -> int:
    """Memory of a process that is resident now (``VmRSS``) or was at most (``VmHWM``)."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.partition(f"{kind}:")[2].split()[0]) // 1024


def budgets_mib() -> int:
    """What all budgets of memory allow together: requests, responses, members of groups, committed offsets."""
    config, _ = load_config(None, "", {}, [])
    named = config.seglog_request_memory_max + config.seglog_groups_memory_bytes + config.seglog_offsets_memory_bytes
    return (named + RESPONSES_BYTES_MAX) // 2**20


def make_topics(running: Daemon, connect: Callable[[], seglog.Client] | None = None) -> None:
    """Make the topics that the peers use."""
    with seglog.connect(running.address) if connect is None else connect() as client:
        client.create_topic("healthy", partitions=1)
        client.create_topic("target", partitions=4, config={"segment.bytes": 1_048_576})
        client.create_topic("keyed", partitions=4, config={"cleanup.policy": "compact"})
        client.create_topic("dated", partitions=4, config={"message.timestamp.before.max.ms": 10**15})


def beset(
    running: Daemon,
    healthy: Healthy,
    peer: Sequence[str],
    mutated: int,
    hostile: int,
    seed: int,
    *,
    mutating: int = 2,
    connect: Callable[[], seglog.Client] | None = None,
    kinds: tuple[str, str] = ("mutated", "hostile"),
) -> dict[str, Any]:
    """Send so many requests of both kinds beside a healthy client, ``mutating`` peers the mutated; returns the results.

    ``connect`` opens a client for the metrics where that takes an account; ``kinds`` are what the peer calls both.

    ``peer`` is the command, but for the kind, the number and the seed, of the processes that send them.
    """
    with seglog.connect(running.address) if connect is None else connect() as client:
        assert running.process is not None
        idle_mib = memory_mib(running.process.pid, "VmRSS")
        healthy.start()
        time.sleep(2)
        alone, before = healthy.p99(0), len(healthy.latencies)
        began = time.monotonic()
        peers = [(kinds[0], mutated // mutating)] * mutating + [(kinds[1], hostile)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", *peer, kind, str(count), str(seed + at)],
                stdout=subprocess.PIPE,
                env=clean_environment(PYTHONPATH=os.pathsep.join([PACKAGES, str(REPOSITORY)])),
            )
            for at, (kind, count) in enumerate(peers)
        ]
        references = [reference_seconds()]
        while any(process.poll() is None for process in processes):
            time.sleep(0.5)
            references.append(reference_seconds())
        printed = [process.communicate()[0] for process in processes]
        assert not any(process.returncode for process in processes), "a hostile peer failed: see stderr"
        told = [json.loads(line) for line in printed]
        seconds = time.monotonic() - began
        healthy.is_wanted = False
        healthy.join(60)
        metrics = numbers_of(client)
    answers: Counter[str] = Counter()
    for one in told:
        answers.update(one["answers"])
    found = {
        "seed": seed,
        "seconds": round(seconds),
        "sent": sum(one["sent"] for one in told),
        "connections": sum(one["connections"] for one in told),
        "largest response, bytes": max(one["largest"] for one in told),
        "all responses, bytes": sum(one["received"] for one in told),
        "answers": dict(answers.most_common()),
        "reference, ms of processor time at most": round(max(references) * 1000, 1),
        "longest stall, ms of processor time": round(metrics["loop_busy_seconds"] * 1000, 1),
        "longest stall, ms by the clock": round(metrics["loop_stall_seconds"] * 1000, 1),
        "healthy client, round trips": len(healthy.latencies),
        "its p99 alone, ms": round(alone, 2),
        "its p99 beside them, ms": round(healthy.p99(before), 2),
        "memory before, MiB": idle_mib,
        "memory at peak, MiB": memory_mib(running.process.pid, "VmHWM"),
    }
    assert healthy.error is None, healthy.error
    assert found["sent"] == mutated // mutating * mutating + hostile
    return found


def judge(running: Daemon, found: dict[str, Any]) -> None:
    """Print what was found, and check it, the longest turn at last."""
    for what, value in found.items():
        print(f"  {what}: {value}")
    logged = running.log_text()
    for bug in ("Traceback", "request_crashed", "connection_crashed"):
        assert bug not in logged, logged[logged.index(bug) - 500 :][:3000]
    assert "UNKNOWN_SERVER_ERROR" not in found["answers"]
    assert found["largest response, bytes"] <= RESPONSE_BYTES_MAX
    assert found["memory at peak, MiB"] <= min(MEMORY_MIB_MAX, found["memory before, MiB"] + budgets_mib())
    assert running.stop() == 0
    longest, reference = "longest stall, ms of processor time", "reference, ms of processor time at most"
    judge_turn(found[longest] / 1000, longest, [found[reference] / 1000])
