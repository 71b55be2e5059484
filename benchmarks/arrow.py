"""Arrow: records of 100 bytes as columns, beside the same work record by record in plain Python."""

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import seglog
from benchmarks.batches import FIRST_TIMESTAMP, values
from benchmarks.harness import MB, Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.processes import daemon
from seglog_protocol.batch_builder import BatchBuilder, NewRecord
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import iter_batches, rewrite_offset_and_epoch, verify_crc
from seglog_protocol.records import iter_records

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC: Final = "bench-arrow"
_PIECE_BYTES: Final = 8 * 1024 * 1024


def run(bench: Bench) -> Iterator[Row]:
    """Decoding and encoding in process for each codec and some sizes of batches; then through a daemon."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - it may be missing
    except ModuleNotFoundError:
        yield Row("decode, encode, read, write", "records/s", note="pyarrow cannot be imported: seglog[arrow]")
        return
    count = bench.pick(400_000, 20_000)
    records: list[NewRecord] = [
        (FIRST_TIMESTAMP + number, b"key-%08d" % number, value, ()) for number, value in enumerate(values(count))
    ]
    rows = pa.record_batch(
        {
            "key": pa.array([record[1] for record in records]),
            "value": pa.array([record[2] for record in records]),
            "timestamp": pa.array([record[0] for record in records]),
        }
    )
    for codec, batch_bytes in ((Codec.NONE, 16 * 1024), *((codec, 256 * 1024) for codec in Codec)):
        name = f"{codec.name.lower()}, {batch_bytes // 1024} KiB"
        pieces = _pieces(records, codec, batch_bytes)
        size = sum(map(len, pieces))
        yield from _rows(bench, f"decode {name}", count, size, partial(_decode, pieces), partial(_loop, pieces))
        encode, build = partial(_encode, rows, codec, batch_bytes), partial(_build, records, codec, batch_bytes)
        yield from _rows(bench, f"encode {name}", count, size, encode, build)
    with daemon(bench) as running, seglog.connect(running.address) as client:
        client.create_topic(TOPIC, 1)
        write, send = partial(_write, client, rows), partial(_send, client, records)
        yield from _rows(bench, "write_arrow, ack os", count, 0, write, send)
        client.delete_topic(TOPIC)
        client.create_topic(TOPIC, 1)
        _write(client, rows)
        read, consume = partial(_read, client, count), partial(_consume, client, count)
        yield from _rows(bench, "read_arrow", count, 0, read, consume)
        client.delete_topic(TOPIC)


def _rows(bench: Bench, name: str, count: int, size: int, arrow: Any, loop: Any) -> Iterator[Row]:
    """Records a second of both sides, and where bytes are known MB a second of the first."""
    ours, beside = take_turns(bench.rounds, partial(_seconds, arrow), partial(_seconds, loop))
    rates = [count / seconds for seconds in ours]
    yield Row(name, "records/s", rates, [count / seconds for seconds in beside], "the client's loop")
    if size:
        yield Row("", "MB/s", [size / MB / seconds for seconds in ours])


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- In process -------------------------------------------------------------------------------------------------------


def _build(records: list[NewRecord], codec: Codec, batch_bytes: int) -> list[bytes]:
    batches, builder = [], BatchBuilder()
    for timestamp, key, value, headers in records:
        if not builder.try_append(timestamp, key, value, headers, size_max=batch_bytes):
            batches.append(builder.build(codec))
            builder = BatchBuilder()
            builder.append(timestamp, key, value, headers)
    batches.append(builder.build(codec))
    return batches


def _pieces(records: list[NewRecord], codec: Codec, batch_bytes: int) -> list[bytes]:
    """The batches as they would lie in a log, in pieces as they are fetched."""
    pieces, piece, offset = [], bytearray(), 0
    for built in _build(records, codec, batch_bytes):
        batch = bytearray(built)
        rewrite_offset_and_epoch(batch, 0, offset, 0)
        ((header, _),) = iter_batches(batch)
        offset = header.next_offset
        if len(piece) + len(batch) > _PIECE_BYTES:
            pieces.append(bytes(piece))
            piece = bytearray()
        piece += batch
    return [*pieces, bytes(piece)]


def _decode(pieces: list[bytes]) -> None:
    from seglog.arrow.decoding import decode  # noqa: PLC0415 - needs pyarrow

    for piece in pieces:
        for _ in decode(piece, TOPIC, 0):
            pass


def _loop(pieces: list[bytes]) -> None:
    for piece in pieces:
        for header, batch in iter_batches(piece):
            assert verify_crc(batch, 0, header)
            for _ in iter_records(header, batch):
                pass


def _encode(rows: "pa.RecordBatch", codec: Codec, batch_bytes: int) -> None:
    from seglog.arrow.columns import new_records  # noqa: PLC0415 - needs pyarrow
    from seglog.arrow.encoding import ArrowEncoder  # noqa: PLC0415

    encoder = ArrowEncoder(TOPIC, 1, batch_bytes=batch_bytes, codec=codec)
    for _ in encoder.encode(new_records(rows, FIRST_TIMESTAMP)):
        pass


# --- Through a daemon -------------------------------------------------------------------------------------------------


def _write(client: "seglog.Client", rows: "pa.RecordBatch") -> None:
    seglog.write_arrow(client, TOPIC, rows, ack="os")


def _send(client: "seglog.Client", records: list[NewRecord]) -> None:
    with client.producer(TOPIC, ack="os") as producer:
        for timestamp, key, value, _ in records:
            producer.send(value, key=key, timestamp=timestamp)


def _read(client: "seglog.Client", count: int) -> None:
    _expect(count, sum(batch.num_rows for batch in seglog.read_arrow(client, TOPIC)))


def _consume(client: "seglog.Client", count: int) -> None:
    with client.consumer(TOPIC) as consumer:
        _expect(count, sum(1 for _ in consumer))


def _expect(count: int, found: int) -> None:
    if found != count:
        raise BenchmarkError(f"{count} records were acknowledged, {found} came back")


BENCHMARK = Benchmark(
    "arrow",
    "values of 100 bytes, keys of 12; all columns; batches of up to 16 and 256 KiB before compression",
    "the same record by record: record loop and builder in process, producer and consumer through a daemon",
    run,
)
