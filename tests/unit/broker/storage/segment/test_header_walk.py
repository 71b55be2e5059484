"""A walk over headers steps over damage that is known, and says where it met other bytes."""

from collections.abc import Sequence

from seglog_broker.storage.segment.damage import DamagedRange, HeaderWalk, next_damage
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from tests.logs import batch_of_size
from tests.support import each_case

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


_MISSING = DamagedRange(1, 5, 0, 100, 100, "missing")
_TWO = (_damage(1, 2), _damage(3, 5))


@each_case(
    ("file", "damaged", "where", "found", "left"),
    [
        # Without damage it ends at the end.
        (_log(4), (), (), [0, 1, 2, 3], (400, 4)),
        (_log(4), (), (100, 300), [1, 2], (300, 3)),
        (_log(4), (), (200, 200, 2), [], (200, 2)),
        # Known damage is stepped over, whether it looks like a batch or not: also from within and to within it.
        *(
            (file, _TWO, *rest)
            for file in (_log(6), _log(6, 1, 3, 4))
            for rest in (
                ((), [0, 2, 5], (600, 6)),
                ((350,), [5], (600, 6)),
                ((0, 400), [0, 2], (500, 5)),
                ((0, 300), [0, 2], (300, 3)),
            )
        ),
        # Damage to the end leaves nothing.
        (_log(3, 2), (_damage(2, 3),), (), [0, 1], (300, 3)),
        (_log(2, 0, 1), (DamagedRange(0, 9, 0, 0, 200),), (), [], (200, 9)),
        # It stops at damage that is not known, and names the offset due there; also right behind damage that is.
        (_log(4, 2), (), (), [0, 1], (200, 2)),
        (_log(4, 0), (), (), [], (0, -1)),
        (_log(6, 1, 4), (_damage(1, 2),), (), [0, 2, 3], (400, 4)),
        (_log(4, 1, 2), (_damage(1, 2),), (), [0], (200, 2)),
        # Missing offsets are no bytes to step over.
        (_log(3), (_MISSING,), (), [0, 1, 2], (300, 3)),
    ],
)
def test_a_walk_steps_over_known_damage_and_stops_at_other_bytes(
    file: _Bytes, damaged: Sequence[DamagedRange], where: tuple[int, ...], found: list[int], left: tuple[int, int]
) -> None:
    position, end, expected = (*where, *(0, len(file.data), -1)[len(where) :])
    walk = HeaderWalk(file, position, end, damaged, expected)
    assert [batch.header.base_offset for batch in walk] == found
    assert (walk.position, walk.expected) == left


def test_the_next_damage_is_the_one_that_a_position_lies_in_or_before() -> None:
    found = [next_damage(_TWO, position) for position in (0, 100, 199, 200, 499, 500)]
    assert found == [*[_TWO[0]] * 3, *[_TWO[1]] * 2, None]
    assert next_damage([_MISSING], 50) is None
