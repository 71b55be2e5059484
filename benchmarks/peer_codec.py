"""One record codec, measured: ``python peer_codec.py seglog|aiokafka|kafka SECONDS`` prints JSON.

Stands alone, because the interpreter that runs it may know nothing of seglog.
"""

import importlib
import json
import sys
import time
import zlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

RECORDS = 2_000
CHECKSUMMED_FROM = 21  # what stands before it the broker sets
FIRST_TIMESTAMP = 1_700_000_000_000
DISTRIBUTIONS = {"seglog": "seglog", "aiokafka": "aiokafka", "kafka": "kafka-python"}


def main() -> None:
    """Encode and decode for the seconds given."""
    library, seconds = sys.argv[1], float(sys.argv[2])
    encode, decode = seglog_codec() if library == "seglog" else kafka_client_codec(library)
    encoded = encode()
    if decode(encoded) != RECORDS:
        raise SystemExit(f"{library} does not read what it wrote")
    print(
        json.dumps(
            {
                "version": version(DISTRIBUTIONS[library]),
                "crc": zlib.crc32(encoded[CHECKSUMMED_FROM:]),
                "encode": RECORDS / mean_seconds(encode, seconds),
                "decode": RECORDS / mean_seconds(lambda: decode(encoded), seconds),
            }
        )
    )


def mean_seconds(action: Callable[[], Any], seconds: float) -> float:
    """Mean time of a call."""
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or not count:
        action()
        count += 1
    return elapsed / count


def seglog_codec() -> tuple[Callable[[], bytes], Callable[[bytes], int]]:
    """Ours."""
    builder = importlib.import_module("seglog_protocol.batch_builder")
    batches = importlib.import_module("seglog_protocol.record_batch")
    reader = importlib.import_module("seglog_protocol.records")
    records = [(FIRST_TIMESTAMP + 3 * i, b"k" * 10, b"x" * 100, ()) for i in range(RECORDS)]

    def encode() -> bytes:
        data: bytes = builder.encode_batch(records)
        return data

    def decode(data: bytes) -> int:
        fields = [
            (r.offset, r.timestamp, r.key, r.value, r.headers)
            for r in reader.decode_records(batches.parse_header(data), data)
        ]
        return len(fields)

    return encode, decode


def kafka_client_codec(library: str) -> tuple[Callable[[], bytes], Callable[[bytes], int]]:
    """The record classes of aiokafka and kafka-python have the same names."""
    module = importlib.import_module(f"{library}.record.default_records")

    def encode() -> bytes:
        builder = module.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
        for i in range(RECORDS):
            builder.append(i, FIRST_TIMESTAMP + 3 * i, b"k" * 10, b"x" * 100, [])
        return bytes(builder.build())

    def decode(data: bytes) -> int:
        fields = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in module.DefaultRecordBatch(data)]
        return len(fields)

    return encode, decode


if __name__ == "__main__":
    main()
