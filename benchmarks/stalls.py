"""How long the daemon's loop stood still at most, from its own ``metrics``, where the broker has that api."""

from typing import Final

from benchmarks.harness import Bench, Row
from benchmarks.raw_client import connect

METRIC: Final = "loop_stall_seconds"


def loop_stall_seconds(port: int) -> float | None:
    """The longest stall since the daemon started; None when the broker does not say."""
    with connect(port) as connection:
        if "metrics" not in connection.hello.get("apis", {}):
            return None
        header, _ = connection.ask({"api": "metrics", "v": 1})
    metrics = header.get("metrics")
    stall = metrics.get(METRIC) if isinstance(metrics, dict) else None
    return float(stall) if isinstance(stall, (int, float)) else None


def rows(bench: Bench) -> list[Row]:
    """One for each benchmark that ran a daemon; every daemon is asked before it is stopped."""
    if not bench.stalls:
        return [Row("longest stall", "ms", note=f"no broker told {METRIC}: it has no metrics api, or none was run")]
    return [Row(f"longest stall, {group}", "ms", [stall * 1000]) for group, stall in bench.stalls.items()]
