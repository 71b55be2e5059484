"""Batches to send: encoded once and restamped each time, so that encoding is not measured.

A few variants of random text, from a seed. Batches are compressed once, except those of a round trip, whose records
contain their time.
"""

import random
import struct
from base64 import b64encode
from typing import Final, NamedTuple

from seglog.load.plan import STAMP_SIZE
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec, compress
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, seal_batch

VARIANTS: Final = 4

_STAMP: Final = struct.Struct(">8sq")
_NO_HEADERS_SIZE: Final = 1  # bytes after a record's value


class _Template(NamedTuple):
    header: BatchHeader
    records: bytearray
    stamps: list[int]
    """The start of each record's value."""
    compressed: bytes


class BatchMaker:
    """Makes batches of up to ``records_max`` records with values of ``record_size`` bytes.

    With ``stamp_id`` (8 bytes) every value begins with it and the record's time, see ``stamp_of``. A batch has
    ``batch_records``, or as many as fit into ``batch_bytes``, whichever is less, and at least one record.
    """

    def __init__(
        self,
        *,
        record_size: int,
        batch_bytes: int,
        batch_records: int | None = None,
        codec: Codec = Codec.NONE,
        seed: int = 0,
        stamp_id: bytes | None = None,
    ) -> None:
        self.record_size = record_size
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._random = random.Random(seed)  # noqa: S311 - a load, no secret
        self._stamp_id = stamp_id
        self._templates: dict[int, list[_Template]] = {}
        first = self._template(batch_records)
        self.records_max: int = first.header.record_count
        self._templates[self.records_max] = [first]

    def make(self, number: int, records: int, timestamp: int, due: float = 0.0) -> bytes:
        """Batch ``number`` with ``records`` records, all with ``timestamp`` (epoch ms), to be sent at ``due``."""
        variants = self._templates.setdefault(records, [])
        if len(variants) < VARIANTS:
            variants.append(self._template(records))
        template = variants[number % len(variants)]
        body = template.compressed
        if self._stamp_id is not None:
            stamp = _STAMP.pack(self._stamp_id, round(due * 1e9))
            for position in template.stamps:
                template.records[position : position + STAMP_SIZE] = stamp
            body = compress(self._codec, bytes(template.records))
        return seal_batch(template.header._replace(base_timestamp=timestamp, max_timestamp=timestamp), body)

    def _template(self, records: int | None) -> _Template:
        builder = BatchBuilder()
        stamps: list[int] = []
        text = b64encode(self._random.randbytes(self.record_size * (records or 1) + 3))
        while records is None or len(stamps) < records:
            start = len(stamps) * self.record_size % max(1, len(text) - self.record_size)
            if records is None:
                text, start = b64encode(self._random.randbytes(self.record_size + 1)), 0
            value = text[start : start + self.record_size]
            if not builder.try_append(0, None, value, size_max=self._batch_bytes):
                break
            stamps.append(builder.size - HEADER_SIZE - _NO_HEADERS_SIZE - self.record_size)
        plain = builder.build()
        body = plain[HEADER_SIZE:]
        header = parse_header(plain)._replace(attributes=int(self._codec))
        compressed = b"" if self._stamp_id is not None else compress(self._codec, body)
        return _Template(header, bytearray(body), stamps, compressed)


def stamp_of(value: bytes | None, stamp_id: bytes) -> int | None:
    """When a record of this run was due, in nanoseconds of the sender's clock; None for other records."""
    if value is None or len(value) < STAMP_SIZE or not value.startswith(stamp_id):
        return None
    due: int = _STAMP.unpack_from(value)[1]
    return due
