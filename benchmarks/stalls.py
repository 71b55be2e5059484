"""How long the daemon's loop stood still at most, from its own ``metrics``, where the broker has that api."""

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from benchmarks.harness import Bench, Row
from benchmarks.raw_client import connect

METRIC: Final = "loop_stall_seconds"
_PARTS_BY_WORTH: Final = ("max", "longest", "value", "sum")


def loop_stall_seconds(port: int) -> float | None:
    """The longest stall since the daemon started; None when the broker does not say."""
    with connect(port) as connection:
        if "metrics" not in connection.hello.get("apis", {}):
            return None
        header, payload = connection.ask({"api": "metrics", "v": 1})
    found = _find(header)
    if found is None and payload:
        found = _find(msgpack.unpackb(payload, raw=False, strict_map_key=False))
    return found


def _find(value: Any) -> float | None:
    """The metric anywhere in a tree of maps and lists, as a number or as a map with the largest value in it."""
    if isinstance(value, Mapping):
        if METRIC in value:
            return _largest(value[METRIC])
        if value.get("name") == METRIC:
            return _largest(value)
        found = [_find(inner) for inner in value.values()]
    elif isinstance(value, list):
        found = [_find(inner) for inner in value]
    else:
        return None
    return next((stall for stall in found if stall is not None), None)


def _largest(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Mapping):
        for part in _PARTS_BY_WORTH:
            if isinstance(value.get(part), (int, float)):
                return float(value[part])
    return None


def rows(bench: Bench) -> list[Row]:
    """The longest of the whole run, said last: every daemon is asked before it is stopped."""
    name = "longest stall of the loop"
    if not bench.stalls:
        return [Row(name, "ms", note="the broker has no metrics api that tells loop_stall_seconds")]
    return [Row(f"{name}: {group}", "ms", [stall * 1000]) for group, stall in bench.stalls.items()]
