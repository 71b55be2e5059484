"""Isolation: which batches of a log a reader gets, by the transactions that they belong to, aborted ones among them.

At "read_uncommitted" a reader gets every record. At "read_committed" it gets none of a transaction that was aborted,
and reads up to the last stable offset: where the first transaction that is still open begins, else the log end.

Source: Kafka's CompletedFetch, with one difference: a marker ends the aborted transaction of its producer whatever its
type. In a whole log that marker is an ABORT; where another one comes, the ABORT was lost to damage.
"""

from collections.abc import Iterable
from heapq import heapify, heappop
from typing import Final, Literal, NamedTuple, get_args

from seglog_protocol.record_batch import INT64_MAX, NO_PRODUCER_ID, BatchHeader

Isolation = Literal["read_uncommitted", "read_committed"]

READ_UNCOMMITTED: Final[Isolation] = "read_uncommitted"
READ_COMMITTED: Final[Isolation] = "read_committed"
ISOLATIONS: Final[tuple[str, ...]] = get_args(Isolation)


class Aborted(NamedTuple):
    """An aborted transaction: its batches are those of the producer from ``first_offset`` to its marker.

    ``last_offset`` is that of the marker where it is known: what comes behind it belongs to another transaction, even
    if the marker is not there.
    """

    producer_id: int
    first_offset: int
    last_offset: int = INT64_MAX


class AbortedFilter:
    """Which batches of one range of a log are left out, asked in the order of their offsets.

    It may be asked about the same batch again. Nothing of a batch but its header is looked at.
    """

    def __init__(self, aborted: Iterable[Aborted] = ()) -> None:
        """``aborted`` are the aborted transactions with batches in the range; none at "read_uncommitted"."""
        self._pending = [(each.first_offset, each) for each in aborted]
        heapify(self._pending)
        self._running: dict[int, int] = {}  # by producer, the last offset of its aborted transaction

    def drops(self, header: BatchHeader) -> bool:
        """Whether a reader does not get this batch: it is an end marker, or of an aborted transaction."""
        if header.producer_id == NO_PRODUCER_ID:
            return header.is_control
        while self._pending and self._pending[0][0] <= header.last_offset:
            begun = heappop(self._pending)[1]
            self._running[begun.producer_id] = begun.last_offset
        if header.is_control:
            self._running.pop(header.producer_id, None)
            return True
        if not header.is_transactional:
            return False
        return header.base_offset <= self._running.get(header.producer_id, -1)
