"""Many keys at once: where they are in a buffer, and their bytes as numbers, of eight bytes each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seglog_protocol.batch_columns import Int64s
from seglog_protocol.checksum import Buffer
from seglog_protocol.record_columns import RecordColumns

Words: TypeAlias = npt.NDArray[np.uint64]

LONG_BYTES: Final = 256
WORD_BYTES: Final = 8
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(WORD_BYTES + 1)], np.uint64)  # by the bytes left


@dataclass(frozen=True, slots=True)
class Keys:
    """``length[k]`` bytes of ``data`` from ``start[k]`` on are key k."""

    data: Buffer
    start: Int64s
    length: Int64s

    def __len__(self) -> int:
        """How many keys."""
        return len(self.start)

    def __getitem__(self, which: slice) -> "Keys":
        """Some of them."""
        return Keys(self.data, self.start[which], self.length[which])

    def bytes_of(self, number: int) -> bytes:
        """One key."""
        start = int(self.start[number])
        return bytes(self.data[start : start + int(self.length[number])])

    @classmethod
    def of_records(cls, records: RecordColumns, which: Int64s) -> "Keys":
        """The keys of the records ``which``, none of which may be null."""
        return cls(records.data, records.key_start[which], records.key_length[which])

    @classmethod
    def of(cls, keys: Sequence[bytes]) -> "Keys":
        """These keys."""
        length = np.fromiter(map(len, keys), np.int64, len(keys))
        return cls(b"".join(keys), np.cumsum(length) - length, length)

    def words(self) -> list[Words]:
        """Row k has bytes 8 k to 8 k + 7 of every key, as little-endian numbers, 0 behind its end; long keys are 0."""
        data = self.data if len(self.data) >= WORD_BYTES else bytes(self.data).ljust(WORD_BYTES, b"\0")
        last = len(data) - WORD_BYTES
        word_at = np.ndarray((last + 1,), "<u8", data, strides=(1,))  # one from every byte on
        left = np.where(self.length > LONG_BYTES, 0, self.length)
        start, rows = self.start, list[Words]()
        for _ in range(0, int(left.max(initial=0)), WORD_BYTES):
            row: Words = word_at[np.minimum(start, last)]
            if int(start.max()) > last:  # the data ends before the eight bytes do
                row >>= (8 * (start - last).clip(0, WORD_BYTES - 1)).astype(np.uint64)
            if int(left.min()) < WORD_BYTES:
                row &= _MASKS[left.clip(0, WORD_BYTES)]
            rows.append(row)
            start, left = start + WORD_BYTES, left - WORD_BYTES
        return rows
