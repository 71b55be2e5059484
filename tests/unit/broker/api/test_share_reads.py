"""Reads for share fetches: few records each, from pieces that are kept."""

from collections.abc import Sequence

import pytest

from seglog_broker.api.share_reads import PIECE_BYTES, PIECES_MAX, Read, ShareReads
from seglog_broker.coordinators.share.in_flight import Acquired
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import iter_batches
from tests.logs import append_one, batch, batch_of_size
from tests.unit.broker.api.scene import Scene, append


class Reading:
    """Reads of a log by groups; ``count`` has how many of them read a piece."""

    def __init__(self, scene: Scene) -> None:
        self.log = scene.log
        self.reads = ShareReads(scene.broker.directory.handles)
        self.count = 0

    def __call__(
        self, offset: int, records: int = 1, bytes_max: int = 1 << 20, *, min_one: bool = True, reader: str = "g"
    ) -> list[int]:
        """The base offsets of the batches that are read."""
        before = self.reads._pieces.get(reader)
        found = self.reads.read(reader, self.log, offset, offset + records, bytes_max, min_one=min_one, committed=False)
        self.count += self.reads._pieces.get(reader) is not before
        return [] if found is None else bases(found)


def bases(read: Read, acquired: Sequence[Acquired] = ()) -> list[int]:
    data = read.of(acquired or [Acquired(read.batches[0][0], read.batches[-1][1], 1)])
    return [header.base_offset for header, _ in iter_batches(data)]


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await made.create(**{"segment.bytes": 1 << 20, "segment.ms": 10**9})
    return made


async def test_the_next_fetches_read_the_piece_that_is_there(scene: Scene) -> None:
    for _ in range(5):
        await append(scene.broker, batch(b"a", b"b"))
    read = Reading(scene)
    assert [read(0), read(2), read(5, 3), read(0, 100)] == [[0], [2], [4, 6], [0, 2, 4, 6, 8]]
    assert read.count == 1
    assert read(10) == []
    await append(scene.broker, batch(b"c"))
    assert read(8, 100) == [8, 10]
    assert read(10) == [10]
    assert read.count == 2


async def test_bytes_are_limited_but_for_the_first_batch(scene: Scene) -> None:
    for _ in range(3):
        await append(scene.broker, batch_of_size(1000))
    read = Reading(scene)
    assert [read(0, 9, 2500), read(0, 9, 10), read(1, 9, 2500)] == [[0, 1], [0], [1, 2]]
    assert read(0, 9, 10, min_one=False) == []


async def test_what_does_not_fit_into_one_piece_is_read_in_several(scene: Scene) -> None:
    for size in (40_000, 40_000, PIECE_BYTES + 1, 100):
        await append(scene.broker, batch_of_size(size))
    read = Reading(scene)
    assert read(0, 9) == [0, 1, 2, 3]
    found = read.reads.read("g", read.log, 0, 9, 1 << 20, min_one=True, committed=False)
    assert found is not None
    assert [bases(found, [Acquired(*each, 1)]) for each in ((1, 1), (1, 2), (3, 3))] == [[1], [1, 2], [3]]


async def test_a_piece_is_kept_while_few_others_are_and_its_segment_is_there(scene: Scene) -> None:
    await append(scene.broker, batch(b"a"))
    read = Reading(scene)
    for number in range(PIECES_MAX):
        assert read(0, reader=f"g{number}") == [0]
    assert read(0, reader="g0") == [0]
    assert read.count == PIECES_MAX
    assert read(0, reader="another") == [0]
    assert ("g0" in read.reads._pieces, "g1" in read.reads._pieces) == (True, False)
    read.log.segments.replace(0, 1, read.log.segments[0])
    assert read(0, reader="g0") == [0]
    assert read.count == PIECES_MAX + 2


async def test_what_was_read_with_open_transactions_is_not_taken_for_committed(scene: Scene) -> None:
    read = Reading(scene)
    read.log.producers.expect(7, 0)
    one = encode_batch([(-1, None, b"x", ())], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    append_one(read.log, one)
    assert read(0) == [0]
    assert read.reads.read("g", read.log, 0, 9, 1 << 20, min_one=True, committed=True) is None
