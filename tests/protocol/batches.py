"""Helpers for tests about batches."""

from seglog_protocol.record_batch import parse_header, seal_batch, verify_crc, why_implausible
from seglog_protocol.records import Record, decode_records
from tests.protocol import golden


def read(batch: bytes | bytearray) -> list[Record]:
    header = parse_header(batch)
    assert why_implausible(header) is None
    assert header.size == len(batch)
    assert verify_crc(batch, 0, header)
    return decode_records(header, batch)


def batch_of(records: bytes, count: int = 1, *, like: bytes = golden.TWO_RECORDS, **fields: int) -> bytes:
    """A batch with a right checksum around any record bytes."""
    header = parse_header(like)._replace(record_count=count, last_offset_delta=max(count - 1, 0))
    return seal_batch(header._replace(**fields), records)
