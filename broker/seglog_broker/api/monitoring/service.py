"""The metrics of a broker: all families in slices, their pages for the request ``samples``, and plain numbers."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec

from seglog_broker.api.monitoring.families import FAMILIES
from seglog_broker.api.monitoring.samples import Buckets, Slice, Source, in_turns, sliced
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.response_memory import Room
from seglog_protocol.errors import LocalProtocolError
from seglog_protocol.messages import SamplesReply, SamplesRequest, page_of


class Monitoring:
    """Tells what the broker counts and measures."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        """``sources`` make the samples of families, by their names."""
        self._sources = sources
        self.families: Final = tuple(family for family in FAMILIES if family.name in sources)
        """Those that it tells of, in the order of ``FAMILIES``."""

    def slices(self, names: Collection[str] = ()) -> Iterator[Slice]:
        """The slices of the families of these names, of all where none is named, in their order.

        Names that no family has are left out. Each ``next()`` takes a fraction of a millisecond, see ``samples``; the
        caller lets other tasks run after some of them. A slice without samples is a pause, or the family has none now.
        """
        for family in self.families:
            if not names or family.name in names:
                yield from sliced(family, self._sources[family.name])


_PREFIX: Final = "seglog_"

_NAMES: Final = (
    "answers_waiting append_bytes_total ballast_bytes cold_reads_total disk_free_bytes disk_free_inodes disk_full "
    "duplicates_total expired_bytes_total fetch_bytes_total fetches_waited_total fetches_waiting fsyncs_total "
    "log_lines_lost_total open_files partitions_recovered_total recovery_bytes_total recovery_ratio "
    "request_memory_bytes request_memory_waiting request_memory_waits_total retention_next_loss_seconds "
    "scrub_findings_total scrub_last_pass_timestamp_seconds scrub_pass_ratio scrub_passes_total "
    "scrubbed_bytes_total scrubbed_segments_total segments_expired_total segments_rolled_total "
    "tls_handshakes_failed_total topics uptime_seconds"
)
_FAMILIES: Final = frozenset(_PREFIX + name for name in _NAMES.split())
"""Families whose only sample has the family's name, without the prefix."""


def plain_numbers(monitoring: Monitoring, metrics: Metrics, **more: float) -> dict[str, float]:
    """Numbers by names without labels; a counter with labels has one name for each, as in ``appends_disk_total``."""
    numbers: dict[str, float] = {}
    for family, column in monitoring.slices(_FAMILIES):
        for value in column.values:
            assert value is not None
            assert not isinstance(value, Buckets)
            numbers[family.name.removeprefix(_PREFIX)] = value
    for name in ("waiting", "waits_total"):
        numbers[f"memory_{name}"] = numbers.pop(f"request_memory_{name}")
    if numbers["retention_next_loss_seconds"] == math.inf:
        numbers["retention_next_loss_seconds"] = -1
    ended = metrics.connections_ended
    numbers |= {
        "connections_total": sum(listener.connections_accepted for listener in metrics.listeners.values()),
        "connections_open": metrics.connections_open,
        "connections_idle_total": ended["idle"],
        "connections_cut_total": ended["stalled"] + ended["slow_reader"],
        "fsync_seconds_max": metrics.fsync_seconds_max,
        "loop_stall_seconds": metrics.loop.stall_seconds_max,
        "loop_busy_seconds": metrics.loop.busy_seconds_max,
    }
    for name, counter in (
        ("requests", metrics.requests),
        ("appends", metrics.appends),
        ("errors", metrics.request_errors),
    ):
        numbers |= {f"{name}_{label.lower()}_total": count for label, count in sorted(counter.items())}
        numbers[f"{name}_total"] = sum(counter.values())
    return numbers | more


PAGE_BYTES: Final = 1024 * 1024
"""A page ends with the family that takes it beyond this; families are bounded by the numbers of their samples."""


async def answer_samples(
    monitoring: Monitoring, request: SamplesRequest, turn: Callable[[], Awaitable[None]], room: Room
) -> tuple[SamplesReply, bytes]:
    """The reply and its payload, a msgpack list with one item or more for each family; a ``turn`` between slices.

    Its memory is counted in ``room``, of which there are few that are large: it may wait for one. Raises
    LocalProtocolError where it is larger than any response may be.
    """
    wanted = set(request.families)
    families = [family for family in monitoring.families if not wanted or family.name in wanted]
    if request.after:
        behind = [number for number, family in enumerate(families, start=1) if family.name == request.after]
        families = families[behind[0] :] if behind else []
    page: list[bytes] = []
    size = 0
    for number, family in enumerate(families, start=1):
        began = len(page)
        for parts in in_turns(monitoring.slices([family.name]), _encode):
            page += parts
            made = sum(map(len, parts))
            size += made
            if not room.add(made):
                raise LocalProtocolError(f"the samples of {family.name} are larger than a reply may be")
            await room.wait_after(turn)
        if len(page) == began:
            page.append(_encode(Slice.of(family, [])))
        if size > PAGE_BYTES and number < len(families):
            return SamplesReply(more=True), page_of(page)
    return SamplesReply(), page_of(page)


def _encode(piece: Slice) -> bytes:
    family = piece.family
    return msgspec.msgpack.encode(
        {
            "name": family.name,
            "kind": family.kind.value,
            "help": family.help,
            "labels": family.labels,
            "samples": piece.samples,
        }
    )
