"""Batches that Kafka's own classes wrote, with their records (storage-format, Appendix A), and helpers for batches."""

from typing import Final

from seglog_protocol.record_batch import parse_header, seal_batch, verify_crc, why_implausible
from seglog_protocol.records import Record, decode_records

TWO_RECORDS: Final = bytes.fromhex(
    "000000000000000000000055ffffffff02e58cf1ff00000000000100000000000454c300000000000454c3ffffffffffffffffffffffffffff"
    "0000000220000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c75653200"
)
"""A1: uncompressed, base offset 0, no epoch, no producer, CRC 3851219455."""

TWO_RECORDS_READ: Final = [
    Record(0, 283843, b"key1", b"value1", ()),
    Record(1, 1234, b"key2", b"value2", ()),
]

TWO_RECORDS_LZ4: Final = bytes.fromhex(
    "000000000000000000000064ffffffff02a3ac2aa200030000000100000000000454c300000000000454c3ffffffffffffffffffffffffffff"
    "0000000204224d186040822400008020000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c7565320000000000"
)
TWO_RECORDS_SNAPPY: Final = bytes.fromhex(
    "00000000000000000000006bffffffff02a729e9df00020000000100000000000454c300000000000454c3ffffffffffffffffffffffffffff"
    "0000000282534e4150505900000000010000000100000026248c20000000086b6579310c76616c756531002400e1bf2202086b6579320c7661"
    "6c75653200"
)
TWO_RECORDS_ZSTD: Final = bytes.fromhex(
    "000000000000000000000061ffffffff023e54590e00040000000100000000000454c300000000000454c3ffffffffffffffffffffffffffff"
    "0000000228b52ffd005820010020000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c75653200010000"
)
"""A2: the records of A1 through three codecs."""

COMMIT_MARKER: Final = bytes.fromhex(
    "00000000000000070000004200000003027445233900300000000000000000000003e800000000000003e8000000000000002a0001ffffffff"
    "000000012000000008000000010c00000000000900"
)
"""A3: offset 7, timestamp 1000, leader epoch 3, producer 42 epoch 1, coordinator epoch 9."""

IDEMPOTENT: Final = bytes.fromhex(
    "0000000000000005000000440000000302465d80b600000000000100000000000003e800000000000003e9000000000000002a00010000000a"
    "0000000214000000010276020268010e000202026b0100"
)
"""A4: base offset 5, leader epoch 3, producer 42 epoch 1, base sequence 10; a null key, a null header, a tombstone."""

IDEMPOTENT_READ: Final = [
    Record(5, 1000, None, b"v", (("h", None),)),
    Record(6, 1001, b"k", None, ()),
]

IDEMPOTENT_COMPACTED: Final = bytes.fromhex(
    "00000000000000050000003a00000003024087792600400000000100000000000013ec00000000000003e9000000000000002a00010000000a"
    "000000011000854002026b0100"
)
"""A5: what compaction leaves of A4 when only offset 6 is kept, with a delete horizon of 5100."""

IDEMPOTENT_EMPTIED: Final = bytes.fromhex(
    "00000000000000050000003100000003022a825171000000000001ffffffffffffffff00000000000003e9000000000000002a00010000000a"
    "00000000"
)
"""A5: what it leaves when nothing is kept but the batch itself."""

LOG_APPEND_TIME: Final = bytes.fromhex(
    "00000000000000640000004300000007029785b16b000800000001000000000000000a0000000000001388ffffffffffffffffffffffffffff"
    "0000000210000000026b02760010000402026b027700"
)
"""A6: records (10, k, v) and (12, k, w) at offsets 100 and 101, leader epoch 7, appended at 5000."""


def read(batch: bytes | bytearray) -> list[Record]:
    header = parse_header(batch)
    assert why_implausible(header) is None
    assert header.size == len(batch)
    assert verify_crc(batch, 0, header)
    return decode_records(header, batch)


def batch_of(records: bytes, count: int = 1, *, like: bytes = TWO_RECORDS, **fields: int) -> bytes:
    """A batch with a right checksum around any record bytes."""
    header = parse_header(like)._replace(record_count=count, last_offset_delta=max(count - 1, 0))
    return seal_batch(header._replace(**fields), records)
