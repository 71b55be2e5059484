"""Groups of batches of one partition, large enough for array operations, and the bytes of a group as one buffer.

Fetched batches are contiguous in memory, as in the log. Groups keep to that where possible, because copying the bytes
together takes more than half the time of decoding them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from seglog.core.records import FetchedBatch
from seglog_protocol.checksum import Buffer
from seglog_protocol.errors import SeglogError

_WORTH_DECODING: Final = 1 / 8
"""Fraction of ``piece_bytes`` from which a group is not extended with batches of another buffer, to avoid a copy."""


def pieces(batches: Iterable[FetchedBatch], piece_bytes: int) -> Iterator[list[FetchedBatch]]:
    """Consecutive batches of one partition, about ``piece_bytes`` at a time."""
    piece: list[FetchedBatch] = []
    size = 0
    try:
        for batch in batches:
            if piece and (
                size >= piece_bytes
                or batch.partition != piece[0].partition
                or (size >= piece_bytes * _WORTH_DECODING and batch.data.obj is not piece[-1].data.obj)
            ):
                yield piece
                piece, size = [], 0
            piece.append(batch)
            size += len(batch.data)
    except SeglogError:
        if piece:
            yield piece  # batches before the error are yielded first
        raise
    if piece:
        yield piece


def one_buffer(views: Sequence[memoryview]) -> Buffer:
    """The concatenated bytes of ``views``; without a copy where they are contiguous in memory."""
    first, last = views[0], views[-1]
    if all(view.obj is first.obj for view in views):
        whole = memoryview(first.obj).cast("B")
        start, stop = (pa.py_buffer(view).address - pa.py_buffer(whole).address for view in (first, last))
        if stop + len(last) - start == sum(map(len, views)):  # they do not overlap, so there is nothing between
            return whole[start : stop + len(last)]
    return b"".join(views)
