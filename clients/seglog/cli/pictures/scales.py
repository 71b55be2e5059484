"""Scales: of times, with breaks where nothing happens for very long, and of plain numbers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final, NamedTuple

from seglog.core.moments import from_epoch_ms, in_zone, to_epoch_ms

_BREAKS_MAX: Final = 6
_BREAK_SHARE: Final = 0.05
"""Of the scale, for one break."""
_BREAK_FROM: Final = 0.75
"""Time in which nothing happens is broken if it is more than this share of all time that is not."""

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = (
    *(step * _SECOND for step in (1, 2, 5, 10, 15, 30)),
    *(step * _MINUTE for step in (1, 2, 5, 10, 15, 30)),
    *(step * _HOUR for step in (1, 2, 3, 6, 12)),
    *(step * _DAY for step in (1, 2, 7, 14)),
)
_MONTH: Final = 30 * _DAY
_MONTHS: Final = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000)


class Tick(NamedTuple):
    """A place on a scale, and what is there."""

    at: float
    text: str


class _Piece(NamedTuple):
    """Times [first, last] at the places [left, right]."""

    first: int
    last: int
    left: float
    right: float
    is_break: bool


class TimeScale:
    """Epoch ms, linear but for its breaks."""

    def __init__(
        self, times: Iterable[int], *, now: int, zone: tzinfo | None, spans: Iterable[tuple[int, int]] = ()
    ) -> None:
        """The scale holds all of ``times`` and ``now``; ``zone`` None is the machine's own.

        In ``spans``, from a time to another, something happens all the time: there are no breaks in them.
        """
        points = sorted({*times, now})
        if len(points) == 1:
            points = [now - _SECOND, now + _SECOND]
        self._now, self._zone = now, zone
        self._pieces = list(_pieces(points, list(spans)))
        self.breaks = [(piece.left + piece.right) / 2 for piece in self._pieces if piece.is_break]
        """Places at which more was left out than the room shows: the middle of each break."""

    def place(self, time: int) -> float:
        """Where a time is; 0 or 1 for one beyond the ends."""
        for first, last, left, right, _ in self._pieces:
            if time <= last:
                return min(1.0, left + (right - left) * max(0, time - first) / (last - first))
        return 1.0

    def ticks(self, most: int) -> Sequence[Tick]:
        """About ``most`` round times from left to right: times of day, days, months or years."""
        ticks: list[Tick] = []
        for piece in self._pieces:
            count = int(most * (piece.right - piece.left))
            if not piece.is_break and count:
                ticks += [Tick(self.place(time), text) for time, text in self._round_times(piece, count)]
        return ticks

    def _round_times(self, piece: _Piece, most: int) -> Iterator[tuple[int, str]]:
        try:
            first, last = (from_epoch_ms(time, self._zone).replace(tzinfo=None) for time in piece[:2])
            today = from_epoch_ms(self._now, self._zone).date()
            times = list(_round_times(first, last, (piece.last - piece.first) / most))
        except (OverflowError, ValueError):
            return  # years that no calendar has
        day = today
        for text, local in times:
            moment = to_epoch_ms(in_zone(local, self._zone))
            if piece.first <= moment <= piece.last:
                is_other_day, day = local.date() != day, local.date()
                yield moment, f"{local:%m-%d} {text}" if is_other_day and ":" in text else text


def _pieces(points: Sequence[int], spans: Sequence[tuple[int, int]]) -> Iterator[_Piece]:
    """The pieces between times, side by side."""
    gaps = sorted(((last - first, first) for first, last in pairwise(points)), reverse=True)
    rest, broken = points[-1] - points[0], set()
    for size, first in gaps[: min(_BREAKS_MAX, len(gaps) - 1)]:
        if size <= rest * _BREAK_FROM or any(begin <= first and first + size <= end for begin, end in spans):
            break
        broken.add(first)
        rest -= size
    share = (1 - _BREAK_SHARE * len(broken)) / rest
    left, begin = 0.0, points[0]
    for first, last in pairwise(points):
        if first in broken:
            if first > begin:
                yield _Piece(begin, first, left, left := left + (first - begin) * share, is_break=False)
            yield _Piece(first, last, left, left := left + _BREAK_SHARE, is_break=True)
            begin = last
    if points[-1] > begin:
        yield _Piece(begin, points[-1], left, 1.0, is_break=False)


def _round_times(first: datetime, last: datetime, step_ms: float) -> Iterator[tuple[str, datetime]]:
    """Local times with their texts, at least ``step_ms`` apart. Raises OverflowError behind the last year."""
    for step in _STEPS:
        if step >= step_ms:
            epoch = datetime(1970, 1, 1)  # noqa: DTZ001 - local times
            width = timedelta(milliseconds=step)
            at = epoch + -(-(first - epoch) // width) * width
            while at <= last:
                yield _text(at, step), at
                at += width
            return
    months = next((step for step in _MONTHS if step * _MONTH >= step_ms), _MONTHS[-1])
    number = -(-(first.year * 12 + first.month - 1) // months) * months
    while number <= last.year * 12 + last.month - 1:
        at = datetime(number // 12, number % 12 + 1, 1)  # noqa: DTZ001
        yield (f"{at.year}" if months % 12 == 0 else f"{at:%Y-%m}"), at
        number += months


def _text(at: datetime, step: int) -> str:
    if step >= _DAY:
        return f"{at:%m-%d}"
    return f"{at:%H:%M}" if step >= _MINUTE else f"{at:%H:%M:%S}"


@dataclass(frozen=True, slots=True)
class NumberScale:
    """Whole numbers from ``first`` to ``last``."""

    first: int
    last: int
    breaks: tuple[float, ...] = ()

    def place(self, number: int) -> float:
        """Where a number is; 0 or 1 for one beyond the ends."""
        return min(1.0, max(0.0, (number - self.first) / max(1, self.last - self.first)))

    def ticks(self, most: int) -> Sequence[Tick]:
        """Round numbers, and the first one."""
        span = self.last - self.first
        step = next(
            step * 10**power for power in range(20) for step in (1, 2, 5) if step * 10**power * max(1, most) >= span
        )
        begin = -(-self.first // step) * step
        return [Tick(self.place(number), f"{number:,}") for number in range(begin, self.last + 1, step)]
