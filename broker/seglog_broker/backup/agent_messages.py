"""Lines between a broker and the process that backs it up, one JSON message each.

The process asks, the broker answers: it gets no cut that it has not asked for. The first line to it is ``Begin``; when
its standard input ends the broker has ended, and it ends at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Facts that the process has to know: the first line to it. Credentials are in its environment, inherited."""

    log_dir: str
    place: str
    key_file: str
    """Empty without encryption."""
    bandwidth: float
    """Bytes a second at most; 0 without a limit."""
    lag_ms: int
    keep_ms: int
    lease_ms: int
    """0 without a lease."""
    cluster_id: str
    directory_id: str
    incarnation: str = ""
    """The broker's own name, which no other process has ever had: the holder of the lease, whatever keeps it for it."""


class PartitionCut(msgspec.Struct, frozen=True, array_like=True):
    """A partition as it was in the turn of the cut."""

    topic: str
    partition: int
    topic_id: str
    log_start: int
    log_end: int
    active_size: int
    """Bytes of the active segment's ``.log``; its base offset is the last of ``bases``."""
    bases: tuple[int, ...] | None
    """Base offsets of all segments, ascending; None where they are those of the cut before."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """One moment of the whole broker, all of which is durable: what has changed since the cut before."""

    number: int
    """Rises by one with each cut, from 1 on, as long as the process lives."""
    moment_ms: int
    is_whole: bool
    """True if it has all partitions, not only those that changed: the first one, and one after a failure."""
    partitions: tuple[PartitionCut, ...]
    gone: tuple[tuple[str, int], ...] = ()
    """Partitions of topics that were deleted since the cut before."""
    registry: str | None = None
    """The content of the registry of topics at this moment; None where it is as in the cut before."""
    kept: tuple[tuple[str, int], ...] = ()
    """Partitions that cannot be read now, as they are offline: what the destination has of them stays, though they are
    not among ``partitions``. A partition that is in neither list of a whole cut is gone."""


class Changes(msgspec.Struct, frozen=True, tag="changes"):
    """Partitions of which segments were replaced, truncated or deleted since the last cut, expired ones left out."""

    changed: tuple[tuple[str, int], ...]


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The broker stops, and appends nothing more: the process is to take one more cut, publish it, and end.

    It releases its lease then. It is killed when that takes longer than some seconds.
    """


ToAgent = Begin | Cut | Changes | Stop


class CutWanted(msgspec.Struct, frozen=True, tag="cut wanted"):
    """A cut is to be made; with ``is_whole`` of all partitions."""

    is_whole: bool = False


class ChangesWanted(msgspec.Struct, frozen=True, tag="changes wanted"):
    """The question for ``Changes``."""


class Published(msgspec.Struct, frozen=True, tag="published"):
    """The destination has everything of the cut ``number``, under the id of a point or a base."""

    number: int
    id: str
    written: int
    """Bytes that were sent to the destination since the message before, whatever they were for."""


class Trouble(msgspec.Struct, frozen=True, tag="trouble"):
    """A reason that holds the backup up, as a sentence; None when nothing does any more."""

    reason: str | None
    is_final: bool = False
    """True if it does not end by itself: the place is another broker's, or its store lies about conditions."""


class LeaseHeld(msgspec.Struct, frozen=True, tag="lease held"):
    """The lease was renewed: the broker may acknowledge until CLOCK_BOOTTIME is ``until_ns``."""

    until_ns: int


class LeaseAwaited(msgspec.Struct, frozen=True, tag="lease awaited"):
    """The lease is not held yet, or cannot be renewed now, for this reason."""

    reason: str


class LeaseLost(msgspec.Struct, frozen=True, tag="lease lost"):
    """Another broker has the lease; this one must never acknowledge again."""

    reason: str


FromAgent = CutWanted | ChangesWanted | Published | Trouble | LeaseHeld | LeaseAwaited | LeaseLost

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of a line: a cut of all partitions with all their segments is the longest."""

_NO_PARTITIONS: Final = b'"partitions":[]'
_ENCODER: Final = msgspec.json.Encoder()
_TO_AGENT: Final[msgspec.json.Decoder[ToAgent]] = msgspec.json.Decoder(ToAgent)
_FROM_AGENT: Final[msgspec.json.Decoder[FromAgent]] = msgspec.json.Decoder(FromAgent)


def line_of(message: ToAgent | FromAgent) -> bytes:
    """The line of a message."""
    return _ENCODER.encode(message) + b"\n"


def to_agent(line: bytes) -> ToAgent:
    """The message of the broker in a line. Raises ValueError."""
    return _TO_AGENT.decode(line)


def from_agent(line: bytes) -> FromAgent:
    """The message of the process in a line. Raises ValueError."""
    return _FROM_AGENT.decode(line)


def pieces_of(cut: Cut, parts: Iterable[Sequence[PartitionCut]]) -> Iterator[bytes]:
    """The line of ``cut``, which has no partitions, with those of ``parts``, a piece for each part.

    One piece of a cut of all partitions would take the loop of the broker too long.
    """
    beginning, mark, rest = line_of(cut).partition(_NO_PARTITIONS)
    separator = mark[:-1]
    yield beginning
    for part in filter(None, parts):
        yield separator + _ENCODER.encode(part)[1:-1]
        separator = b","
    yield (b"]" if separator == b"," else mark) + rest
