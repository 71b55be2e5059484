"""Pre-encoded record batches. Records are 100 bytes, as everywhere in these benchmarks."""

import json
import random
import time
from collections.abc import Iterator
from typing import Final

from seglog_protocol.batch_builder import BatchBuilder, encode_batch
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, seal_batch

GROUPS: Final = 1_000
RECORD_BYTES: Final = 100
FIRST_TIMESTAMP: Final = time.time_ns() // 1_000_000 - 24 * 3600 * 1000
"""A day ago: older data would expire amid a benchmark, and a day has room for millions of records a ms apart."""


def values(count: int) -> list[bytes]:
    """Values of exactly 100 bytes that look like events, and compress like them."""
    source = random.Random(7)
    made = []
    for number in range(count):
        text = json.dumps(
            {"seq": number, "path": f"src/module_{source.randrange(500):03}.py", "author": f"dev{source.randrange(40)}"}
        )
        made.append(f'{text[:-1]}, "note": "{source.randbytes(50).hex()}'[: RECORD_BYTES - 2].encode() + b'"}')
    return made


def one_record() -> bytes:
    """The smallest real batch: one record of 100 bytes."""
    return encode_batch([(FIRST_TIMESTAMP, None, b"x" * RECORD_BYTES, ())])


def batch_of(size_max: int) -> tuple[bytes, int]:
    """A batch of 100-byte records, as large as ``size_max`` allows; and how many records."""
    builder = BatchBuilder()
    while builder.try_append(FIRST_TIMESTAMP, None, b"x" * RECORD_BYTES, size_max=size_max):
        pass
    return builder.build(), builder.record_count


def dated(template: bytes, count: int, step_ms: int = 1) -> Iterator[bytes]:
    """``count`` copies of a batch, each ``step_ms`` times its records later than the one before.

    Only the header changes, so millions of records are made in seconds. All records of a batch have its timestamp.
    """
    header, body = parse_header(template), template[HEADER_SIZE:]
    for number in range(count):
        timestamp = FIRST_TIMESTAMP + number * header.record_count * step_ms
        yield seal_batch(header._replace(base_timestamp=timestamp, max_timestamp=timestamp), body)


def value_of(number: int) -> bytes:
    """A text of 100 bytes, the first six of which name one of 1,000 groups."""
    return (b"g%05d%018d" % (number * 7919 % GROUPS, number) * 5)[:RECORD_BYTES]
