"""A walk over headers steps over damage that is known, and says where it met other bytes."""

from collections.abc import Sequence

import pytest

from seglog_broker.storage.segment.damage import DamagedRange, HeaderWalk, next_damage
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from tests.logs import batch_of_size

SIZE = 100


class _Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


def _log(count: int, *destroyed: int) -> _Bytes:
    """Batches of one record each, offsets from 0 on; ``destroyed`` are numbers of those that are none any more."""
    data = b""
    for number in range(count):
        batch = bytearray(batch_of_size(SIZE))
        rewrite_offset_and_epoch(batch, 0, number, 0)
        data += b"\xff" * SIZE if number in destroyed else bytes(batch)
    return _Bytes(data)


def _damage(first: int, end: int) -> DamagedRange:
    return DamagedRange(first, end, 0, first * SIZE, end * SIZE)


def _walk(
    file: _Bytes, damaged: Sequence[DamagedRange], position: int = 0, end: int | None = None, expected: int = -1
) -> tuple[list[int], tuple[int, int]]:
    """The base offsets of the batches, and where the walk ends."""
    walk = HeaderWalk(file, position, len(file.data) if end is None else end, damaged, expected)
    found = [batch.header.base_offset for batch in walk]
    return found, (walk.position, walk.expected)


def test_without_damage_it_ends_at_the_end() -> None:
    assert _walk(_log(4), ()) == ([0, 1, 2, 3], (400, 4))
    assert _walk(_log(4), (), 100, 300) == ([1, 2], (300, 3))
    assert _walk(_log(4), (), 200, 200, 2) == ([], (200, 2))


@pytest.mark.parametrize("readable", [False, True])
def test_known_damage_is_stepped_over_whether_it_looks_like_a_batch_or_not(readable: bool) -> None:
    file = _log(6) if readable else _log(6, 1, 3, 4)
    damaged = [_damage(1, 2), _damage(3, 5)]
    assert _walk(file, damaged) == ([0, 2, 5], (600, 6))
    assert _walk(file, damaged, 350) == ([5], (600, 6)), "from within damage"
    assert _walk(file, damaged, 0, 400) == ([0, 2], (500, 5)), "to within damage"
    assert _walk(file, damaged, 0, 300) == ([0, 2], (300, 3)), "to where damage begins"


def test_damage_to_the_end_leaves_nothing() -> None:
    assert _walk(_log(3, 2), [_damage(2, 3)]) == ([0, 1], (300, 3))
    assert _walk(_log(2, 0, 1), [DamagedRange(0, 9, 0, 0, 200)]) == ([], (200, 9))


def test_it_stops_at_damage_that_is_not_known_and_names_the_offset_due_there() -> None:
    assert _walk(_log(4, 2), ()) == ([0, 1], (200, 2))
    assert _walk(_log(4, 0), ()) == ([], (0, -1))
    assert _walk(_log(6, 1, 4), [_damage(1, 2)]) == ([0, 2, 3], (400, 4))
    assert _walk(_log(4, 1, 2), [_damage(1, 2)]) == ([0], (200, 2)), "right behind damage that is known"


def test_missing_offsets_are_no_bytes_to_step_over() -> None:
    missing = DamagedRange(1, 5, 0, 100, 100, "missing")
    assert next_damage([missing], 50) is None
    assert _walk(_log(3), [missing]) == ([0, 1, 2], (300, 3))


def test_the_next_damage_is_the_one_that_a_position_lies_in_or_before() -> None:
    damaged = [_damage(1, 2), _damage(3, 5)]
    assert [next_damage(damaged, position) for position in (0, 100, 199, 200, 499, 500)] == [
        *[damaged[0]] * 3,
        *[damaged[1]] * 2,
        None,
    ]
