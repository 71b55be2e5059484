"""Cleanable segments, and whether a round is due: Kafka's rules, and one of seglog."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.compaction.cleanable import Cleanable, find_cleanable
from tests.support import each_case

NOW = 1_700_000_000_000
HOUR = 3_600_000


class Piece(NamedTuple):
    base_offset: int
    size: int = 100
    largest_timestamp: int = NOW - HOUR
    first_timestamp: int = NOW - HOUR


class Pieces(list[Piece]):
    """The segments of a log; records which of them were read."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        super().__init__(pieces)
        self.looked_into: list[int] = []

    @property
    def bases(self) -> list[int]:
        return [piece.base_offset for piece in self]

    def __getitem__(self, number: Any, /) -> Any:
        self.looked_into.append(number)
        return super().__getitem__(number)

    def size_between(self, first: int, behind: int) -> int:
        return sum(piece.size for piece in super().__getitem__(slice(first, behind)))


SEGMENTS = [Piece(0), Piece(10), Piece(20), Piece(30)]
"""The last one is active; the log ends at 40."""


def look(
    *,
    segments: Iterable[Piece] = SEGMENTS,
    config: TopicConfig | None = None,
    log_start: int = 0,
    log_end: int = 40,
    stable: int | None = None,
    checkpoint: int | None = None,
    tombstones_due: int | None = None,
) -> Cleanable:
    pieces = segments if isinstance(segments, Pieces) else Pieces(segments)
    return find_cleanable(
        pieces.bases,
        pieces.size_between,
        lambda number: int(pieces[number].largest_timestamp),
        lambda number: int(pieces[number].first_timestamp),
        config or TopicConfig(cleanup_policy=("compact",)),
        log_start_offset=log_start,
        log_end_offset=log_end,
        last_stable_offset=log_end if stable is None else stable,
        checkpoint=checkpoint,
        tombstones_due_ms=tombstones_due,
        now_ms=NOW,
    )


_LAG = TopicConfig(cleanup_policy=("compact",), min_compaction_lag_ms=1000)
_YOUNG = Piece(10, largest_timestamp=NOW - 999)


@each_case(
    ("facts", "expected"),
    [
        ({}, (0, 30, 0, 300, False)),
        # A segment with records of an open transaction and those after it are not cleaned.
        *(
            ({"stable": stable}, (0, until, 0, until * 10, False))
            for stable, until in ((40, 30), (35, 30), (30, 30), (29, 20), (20, 20), (15, 10), (0, 0))
        ),
        ({"stable": 15, "checkpoint": 30}, (30, 10, 100, 0, False)),  # a round went further than is stable now
        # A round ended: at the active segment, in it, amid another, which counts as clean and as dirty.
        ({"checkpoint": 30}, (30, 30, 300, 0, False)),
        ({"checkpoint": 35}, (35, 30, 300, 0, False)),
        ({"checkpoint": 15}, (15, 30, 200, 200, False)),
        # A checkpoint outside the log begins anew at the log start.
        ({"checkpoint": 3, "log_start": 5}, (5, 30, 100, 300, False)),
        ({"checkpoint": 41, "log_start": 5}, (5, 30, 100, 300, False)),
        # A log of one segment cannot be cleaned.
        ({"segments": [Piece(0)], "tombstones_due": 1}, (0, 0, 0, 0, False)),
        # A segment younger than the lag and all after it are left alone, unless it is clean already.
        ({"segments": [Piece(0), _YOUNG, Piece(20), Piece(30)], "config": _LAG}, (0, 10, 0, 100, False)),
        (
            {
                "segments": [Piece(0), _YOUNG, Piece(20), Piece(30)],
                "config": TopicConfig(cleanup_policy=("compact",), min_compaction_lag_ms=998),
            },
            (0, 30, 0, 300, False),
        ),
        (
            {"segments": [_YOUNG._replace(base_offset=0), *SEGMENTS[1:]], "config": _LAG, "checkpoint": 10},
            (10, 30, 100, 200, False),
        ),
    ],
)
def test_which_part_of_a_log_can_be_cleaned(facts: dict[str, Any], expected: tuple[int, int, int, int, bool]) -> None:
    found = look(**facts)
    assert found == expected
    total = found.clean_bytes + found.dirty_bytes
    assert found.dirty_ratio == (found.dirty_bytes / total if total else 0)
    assert found.is_worth_it(TopicConfig(min_cleanable_dirty_ratio=0)) == (found.dirty_bytes > 0)


def test_a_ratio_at_the_bound_is_not_worth_a_round_and_one_above_is() -> None:
    found = look(checkpoint=20)
    assert found.dirty_ratio == pytest.approx(1 / 3)
    assert not found.is_worth_it(TopicConfig(min_cleanable_dirty_ratio=100 / 300))
    assert found.is_worth_it(TopicConfig(min_cleanable_dirty_ratio=0.33))


def test_the_largest_lag_makes_a_round_due() -> None:
    """A dirty record older than the largest lag makes a round due whatever the ratio."""
    config = TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=HOUR - 1, min_cleanable_dirty_ratio=1)
    assert look(config=config, checkpoint=20).is_worth_it(config)
    assert not look(config=config, checkpoint=30).is_worth_it(config)
    unhurried = TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=HOUR, min_cleanable_dirty_ratio=1)
    assert not look(config=unhurried, checkpoint=20).is_worth_it(unhurried)
    unstamped = [Piece(base, first_timestamp=-1) for base in (0, 10, 20, 30)]
    assert not look(segments=unstamped, config=config).is_overdue


def test_a_tombstone_that_has_outlived_its_time_makes_a_round_due_in_a_quiet_log() -> None:
    assert look(checkpoint=30, tombstones_due=NOW).is_worth_it(TopicConfig(min_cleanable_dirty_ratio=1))
    assert not look(checkpoint=30, tombstones_due=NOW + 1).is_overdue


def test_of_very_many_segments_only_those_that_a_lag_asks_for_are_looked_into() -> None:
    pieces = Pieces(Piece(number * 10) for number in range(1000))
    found = look(segments=pieces, log_end=10_000, checkpoint=9000)
    assert (found.clean_bytes, found.dirty_bytes, pieces.looked_into) == (90_000, 9_900, [])
    look(segments=pieces, config=_LAG, log_end=10_000, checkpoint=9000)
    assert pieces.looked_into == list(range(900, 999))


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    checkpoint=st.none() | st.integers(0, 80),
    young=st.sets(st.integers(0, 5)),
    lag=st.sampled_from([0, 1000]),
)
def test_clean_and_dirty_together_are_what_lies_below_the_bound(
    sizes: list[int], checkpoint: int | None, young: set[int], lag: int
) -> None:
    segments = [Piece(number * 10, size, NOW if number in young else NOW - HOUR) for number, size in enumerate(sizes)]
    config = TopicConfig(cleanup_policy=("compact",), min_compaction_lag_ms=lag)
    found = look(segments=segments, config=config, log_end=len(sizes) * 10, checkpoint=checkpoint)
    below = [piece for piece in segments if piece.base_offset < found.until_offset]
    straddling = [p for p in below if p.base_offset < found.first_dirty_offset < p.base_offset + 10]
    clean_bytes = sum(p.size for p in below if p.base_offset < found.first_dirty_offset)
    assert found.clean_bytes == clean_bytes
    assert found.dirty_bytes == sum(p.size for p in below) - clean_bytes + sum(p.size for p in straddling)
    assert 0 <= found.dirty_ratio <= 1
    assert found.until_offset <= segments[-1].base_offset
