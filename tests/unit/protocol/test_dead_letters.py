"""The headers of dead letters, against batches that Apache Kafka 4.4.0 wrote for share groups."""

import pytest

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.dead_letters import COUNT_EXCEEDED, REJECTED, DeadLetterOrigin, read_origin
from seglog_protocol.record_batch import parse_header
from seglog_protocol.records import decode_records

_NAMES = (
    "0c245f5f646c712e6572726f72732e746f706963067372632c5f5f646c712e6572726f72732e706172746974696f6e023{partition}265f5f"
    "646c712e6572726f72732e6f6666736574023{offset}245f5f646c712e6572726f72732e67726f757004673{group}365f5f646c712e657272"
    "6f72732e64656c69766572792e636f756e74023{count}285f5f646c712e6572726f72732e6d657373616765"
)
_REJECTED = "344f66667365742072656a656374656420627920636c69656e742e"
_EXCEEDED = "5a4f66667365742064656c697665727920636f756e7420657863656564656420746865207468726573686f6c642e"

WRITTEN = [
    (  # a copy: key and value are those of the record, its own headers and timestamp are not
        "0000000000000003000000fa0000000002518966bb000000000000000001a22a3124a2000001a22a3124a2ffffffffffffffffffffffffffff"
        "000000018e03000000047032047132" + _NAMES.format(partition=0, offset=2, group=1, count=2) + _EXCEEDED,
        (b"p2", b"q2"),
        DeadLetterOrigin("src", 0, 2, "g1", 2, COUNT_EXCEEDED),
    ),
    (  # headers alone
        "0000000000000005000000e30000000002f5e6af80000000000000000001a22a313452000001a22a313452ffffffffffffffffffffffffffff"
        "00000001e0020000000101" + _NAMES.format(partition=2, offset=5, group=2, count=1) + _REJECTED,
        (None, None),
        DeadLetterOrigin("src", 2, 5, "g2", 1, REJECTED),
    ),
]


@pytest.mark.parametrize(("written", "copy", "origin"), WRITTEN, ids=["copy", "headers alone"])
def test_dead_letter_has_the_bytes_of_kafka(
    written: str, copy: tuple[bytes | None, bytes | None], origin: DeadLetterOrigin
) -> None:
    """A dead letter is, byte for byte, the one that Kafka wrote, and is read as what it was made of."""
    batch = bytes.fromhex(written)
    header = parse_header(batch)
    [record] = decode_records(header, batch)
    made = encode_batch(
        [(header.base_timestamp, *copy, origin.headers)], base_offset=header.base_offset, leader_epoch=0
    )
    assert made == batch
    assert read_origin(record.headers) == origin


@pytest.mark.parametrize("value", [None, b"", b"five", b"\xff"])
def test_other_records_are_no_dead_letters(value: bytes | None) -> None:
    """A record without one of the headers, or with a value that no broker wrote, is no dead letter."""
    headers = dict(DeadLetterOrigin("src", 2, 5, "g2", 1, REJECTED).headers)
    assert read_origin(list((headers | {"__dlq.errors.offset": value}).items())) is None
    del headers["__dlq.errors.offset"]
    assert read_origin(list(headers.items())) is None
