"""Batches of one partition in pieces that arrays are worth the trouble for, and the bytes of a piece as one buffer.

What was fetched lies in memory as it lay in the log, batch behind batch. A piece follows that where it can: copying the
bytes together takes longer than half of all that decoding does with them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from seglog.fetching import FetchedBatch
from seglog_protocol.checksum import Buffer
from seglog_protocol.errors import SeglogError

_WORTH_DECODING: Final = 1 / 8
"""Of a whole piece: what is that large is not filled up with bytes from elsewhere, for which it would be copied."""


def pieces(batches: Iterable[FetchedBatch], piece_bytes: int) -> Iterator[list[FetchedBatch]]:
    """Neighbouring batches of one partition, some ``piece_bytes`` at a time."""
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
            yield piece  # what came before the error is handed out first
        raise
    if piece:
        yield piece


def one_buffer(views: Sequence[memoryview]) -> Buffer:
    """The bytes of all ``views`` one behind the other; a view itself where they lie like that in memory."""
    first, last = views[0], views[-1]
    if all(view.obj is first.obj for view in views):
        whole = memoryview(first.obj).cast("B")
        start, stop = (pa.py_buffer(view).address - pa.py_buffer(whole).address for view in (first, last))
        if stop + len(last) - start == sum(map(len, views)):  # they do not overlap, so there is nothing between
            return whole[start : stop + len(last)]
    return b"".join(views)
