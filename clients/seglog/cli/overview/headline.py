"""The broker's figures, in words and with their units, for whatever draws them."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog.cli.figures import NONE, bytes_text, count_text, percent_text, rate_text, seconds_text
from seglog.cli.overview.readings import Numbers
from seglog.core.errors import count_of

FULL_SECONDS_WARNED: Final = 24 * 3600.0
TURN_SECONDS_WARNED: Final = 0.1
NOT_DURABLE_SECONDS_WARNED: Final = 30.0
"""Where figures become yellow."""

RED: Final = "bold red"
YELLOW: Final = "yellow"


class Figure(NamedTuple):
    """A label, its value, and how it is to be seen."""

    label: str
    value: str
    style: str = ""


def figures_of(n: Numbers) -> list[Figure]:
    """In the order in which they are read: what comes in and goes out, how fast, how safe, how full."""
    errors = n.rate("seglog_request_errors_total")
    busy = n.rate("seglog_loop_busy_seconds_total")
    turn = n.value("seglog_loop_longest_turn_seconds")
    undurable = n.value("seglog_not_durable_seconds")
    return [
        Figure("appends", f"{rate_text(n.rate('seglog_append_bytes_total'), 'B')}, "
               f"{rate_text(n.rate('seglog_append_batches_total'))}"),
        Figure("fetches", f"{rate_text(n.rate('seglog_fetch_bytes_total'), 'B')}, "
               f"{count_text(n.value('seglog_fetches_waiting'))} waiting"),
        Figure("requests", f"{rate_text(n.rate('seglog_requests_total'))}, {rate_text(errors)} errors",
               YELLOW if errors else ""),
        Figure("append p99", _durations(n, "seglog_request_duration_seconds", {"append", "Produce"})),
        Figure("fetch p99", _durations(n, "seglog_request_duration_seconds", {"fetch", "Fetch"})),
        Figure("fsync p99", _durations(n, "seglog_fsync_duration_seconds")),
        Figure("not on disk", f"{bytes_text(n.value('seglog_not_durable_bytes'))}, {seconds_text(undurable)}",
               YELLOW if (undurable or 0) > NOT_DURABLE_SECONDS_WARNED else ""),
        Figure("loop busy", f"{percent_text(busy)}, longest turn {seconds_text(turn)}",
               YELLOW if (turn or 0) > TURN_SECONDS_WARNED else ""),
        _disk(n),
        _share("connections", n.total("seglog_connections"), n.value("seglog_connections_limit")),
        _share("open files", n.value("seglog_open_files"), n.value("seglog_open_files_limit")),
        _memory(n),
        _partitions(n),
        Figure("next expiry", f"in {seconds_text(n.value('seglog_retention_next_loss_seconds'))}".replace("in -", NONE)
               .replace("in never", "never")),
        *_recovery(n),
        Figure("damage", count_text(n.value("seglog_damaged_ranges")),
               RED if n.value("seglog_damaged_ranges") else ""),
        *_transactions(n),
    ]  # fmt: skip


def _transactions(n: Numbers) -> list[Figure]:
    """Nothing where none is open."""
    hanging, held_up = n.value("seglog_transactions_hanging"), n.value("seglog_transactions_held_up")
    count, oldest = n.value("seglog_transactions_open"), n.value("seglog_transaction_oldest_seconds")
    if hanging or held_up:
        stuck = ((hanging, "hanging"), (held_up, "held up"))
        return [Figure("transactions", ", ".join(f"{count_text(count)} {how}" for count, how in stuck if count), RED)]
    return [Figure("transactions", f"{count_text(count)} open, oldest {seconds_text(oldest)}")] if count else []


def _durations(n: Numbers, name: str, apis: set[str] | None = None) -> str:
    def wanted(labels: Sequence[str]) -> bool:
        return apis is None or labels[-1] in apis

    return f"{seconds_text(n.quantile(name, 0.99, wanted))} (p50 {seconds_text(n.quantile(name, 0.5, wanted))})"


def _disk(n: Numbers) -> Figure:
    free, size = n.value("seglog_disk_free_bytes"), n.value("seglog_disk_size_bytes")
    until = n.value("seglog_disk_full_in_seconds")
    if n.value("seglog_disk_full"):
        return Figure("disk", f"FULL, {bytes_text(free)} free", RED)
    text = f"{bytes_text(free)} free of {bytes_text(size)}"
    if until is None or until == float("inf"):
        return Figure("disk", text)
    return Figure("disk full in", f"{seconds_text(until)}, {text}", YELLOW if until < FULL_SECONDS_WARNED else "")


def _memory(n: Numbers) -> Figure:
    used, most = n.value("seglog_request_memory_bytes"), n.value("seglog_request_memory_limit_bytes")
    return Figure("memory", f"{bytes_text(used)} of {bytes_text(most)} for requests", _full(used, most))


def _share(label: str, used: float | None, most: float | None) -> Figure:
    return Figure(label, f"{count_text(used)} of {count_text(most)}", _full(used, most))


def _full(used: float | None, most: float | None) -> str:
    return YELLOW if used and most and used > 0.9 * most else ""


def _partitions(n: Numbers) -> Figure:
    states = {state: values[0][1] for state, values in n.by("seglog_partitions", "state").items() if values[0][1]}
    serving = int(states.pop("serving", 0))
    others = ", ".join(f"{count_text(count)} {state.replace('_', ' ')}" for state, count in sorted(states.items()))
    topics = count_of(int(n.value("seglog_topics") or 0), "topic")
    if others:
        return Figure("partitions", others, RED)
    return Figure("partitions", f"{serving:,} in {topics}")


def _recovery(n: Numbers) -> list[Figure]:
    """Nothing where there is none under way."""
    ratio = n.value("seglog_recovery_ratio")
    return [] if ratio is None or ratio >= 1 else [Figure("recovered", percent_text(ratio), YELLOW)]
