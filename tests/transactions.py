"""Logs with transactions, made batch by batch, and what of them was committed, kept as plain lists."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from struct import pack
from typing import Literal

from hypothesis import strategies as st

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.checksum import crc32c
from seglog_protocol.record_batch import NO_SEQUENCE, parse_header
from seglog_protocol.segment_files import (
    LOG_SUFFIX,
    PARTITION_STATE_FILE,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)
from seglog_protocol.transaction_files import (
    TXN_INDEX_VERSION,
    AbortedTransaction,
    ProducerEntry,
    encode_aborted_transaction,
    encode_snapshot,
)

Step = tuple[Literal["plain", "data", "commit", "abort"], int, int]
"""What happens, the producer, and for data the number of records. "plain" data belongs to no transaction."""

steps = st.lists(
    st.tuples(
        st.sampled_from(("plain", "data", "data", "data", "commit", "abort")), st.integers(0, 3), st.integers(1, 3)
    ),
    max_size=40,
)
"""Transactions of four producers, interleaved; some are still open at the end."""


@dataclass
class Transaction:
    """One transaction; ``fate`` "open" until its marker is written, which takes offset ``marker``."""

    producer_id: int
    first_offset: int
    records: list[int] = field(default_factory=list)
    fate: Literal["open", "commit", "abort"] = "open"
    marker: int = -1


class TransactionLog:
    """A log and its history."""

    def __init__(self, history: Iterable[Step] = ()) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.plain: list[int] = []  # offsets of records outside of transactions
        self.transactions: list[Transaction] = []
        for kind, producer_id, count in history:
            if kind in {"plain", "data"}:
                self.append(producer_id, count, transactional=kind == "data")
            else:
                self.finish(producer_id, "commit" if kind == "commit" else "abort")

    def running(self, producer_id: int) -> Transaction | None:
        """The open transaction of a producer."""
        return next((t for t in self.transactions if t.producer_id == producer_id and t.fate == "open"), None)

    def append(self, producer_id: int, count: int = 1, *, transactional: bool = True) -> None:
        """A batch; its records are "offset", each. A producer with an open transaction writes only inside of it."""
        running = self.running(producer_id)
        offsets = range(self.end, self.end + count)
        if running is None and transactional:
            running = Transaction(producer_id, self.end)
            self.transactions.append(running)
        (self.plain if running is None else running.records).extend(offsets)
        self._add(
            encode_batch(
                [(1000 + offset, None, b"%d" % offset, ()) for offset in offsets],
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=self.end,
                transactional=running is not None,
            )
        )

    def finish(self, producer_id: int, fate: Literal["commit", "abort"]) -> None:
        """The marker of a producer's transaction; also where none is open, as after a coordinator's retry."""
        running = self.running(producer_id)
        if running is not None:
            running.fate, running.marker = fate, self.end
        self._add(
            encode_batch(
                [(1000 + self.end, pack(">hh", 0, fate == "commit"), pack(">hi", 0, 0), ())],
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=NO_SEQUENCE,
                transactional=True,
                control=True,
            )
        )

    def _add(self, batch: bytes) -> None:
        self.batches.append(batch)
        self.end = parse_header(batch).next_offset

    # --- What readers get ---------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Where the first open transaction begins, else the end."""
        return min((t.first_offset for t in self.transactions if t.fate == "open"), default=self.end)

    def uncommitted(self) -> list[int]:
        """Offsets of all records, markers excluded."""
        return sorted([*self.plain, *(offset for t in self.transactions for offset in t.records)])

    def committed(self) -> list[int]:
        """Offsets of the records that a reader at read_committed gets."""
        whole = [offset for t in self.transactions if t.fate == "commit" for offset in t.records]
        return sorted(offset for offset in [*self.plain, *whole] if offset < self.last_stable_offset)

    def aborted(self, start: int = 0, end: int = 1 << 62) -> list[Transaction]:
        """Aborted transactions with a part in offsets ``start`` to ``end``, by their markers."""
        found = [t for t in self.transactions if t.fate == "abort" and t.marker >= start and t.first_offset < end]
        return sorted(found, key=lambda t: t.marker)

    # --- On disk ------------------------------------------------------------------------------------------------------

    def write(self, directory: Path, cuts: Sequence[int] = (), *, indexes: bool = True, snapshots: bool = True) -> None:
        """Write the segments that begin at batches ``cuts`` (and the first), as a broker leaves them."""
        numbers = sorted({0, *(cut for cut in cuts if 0 < cut < len(self.batches))})
        sums: dict[int, tuple[int, int]] = {}
        bases = [parse_header(self.batches[number]).base_offset for number in numbers if self.batches]
        for number, following in pairwise([*numbers, len(self.batches)]):
            base = parse_header(self.batches[number]).base_offset if self.batches else 0
            end = min((other for other in bases if other > base), default=self.end)
            path = directory / segment_file_name(base, LOG_SUFFIX)
            path.write_bytes(b"".join(self.batches[number:following]))
            entries = b"".join(
                encode_aborted_transaction(
                    AbortedTransaction(TXN_INDEX_VERSION, t.producer_id, t.first_offset, t.marker, t.marker + 1)
                )
                for t in self.aborted()
                if base <= t.marker < end
            )
            if indexes and entries:
                path.with_suffix(TXN_INDEX_SUFFIX).write_bytes(entries)
                sums[base] = len(entries), crc32c(entries)
            if snapshots and base:
                path.with_suffix(SNAPSHOT_SUFFIX).write_bytes(encode_snapshot(self._producers(base)))
        (directory / PARTITION_STATE_FILE).write_text(json.dumps({"transaction_indexes": sums}))

    def _producers(self, end: int) -> list[ProducerEntry]:
        opened = [t for t in self.transactions if t.first_offset < end and not 0 <= t.marker < end]
        return [ProducerEntry(t.producer_id, 0, -1, -1, 0, 1000, 0, t.first_offset) for t in opened]
