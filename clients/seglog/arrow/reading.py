"""``read_arrow``: a topic, or a range of it, as a stream of Arrow record batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pyarrow as pa

from seglog.arrow.decoding import DecodedRecords, decode_verified
from seglog.arrow.fitting import Misfit
from seglog.arrow.schema import schema_of
from seglog.arrow.values import Decode, Kind, Values
from seglog.client import Client, connect
from seglog.core.fetcher import OutOfRange
from seglog.core.records import ConsumerGap, FetchedBatch, GapLog
from seglog.directory.consumer import LogDirectory
from seglog_protocol.batch_columns import Int64s, read_batches
from seglog_protocol.checksum import Buffer
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import ClientClosedError, SeglogError
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation

if TYPE_CHECKING:
    from seglog.consumer import Consumer
    from seglog.core.offsets import Place
    from seglog.directory.consumer import DirectoryConsumer

_WORTH_DECODING: Final = 1 / 8
"""Fraction of ``piece_bytes`` from which a group is not extended with batches of another buffer, to avoid a copy."""

BATCH_ROWS: Final = 65_536

_READ: Final = (
    "the reader is at its end, and a stream can be read once: keep the result of read_all(), or call read_arrow() "
    "again, with since=reader.positions() for records appended since"
)

PIECE_BYTES: Final = 8 * 1024 * 1024
"""Batches are decoded in pieces of about that size, of one partition: large enough for arrays to pay off, and small
enough for the processor's cache. It is also the fetch size of a partition."""


def read_arrow(
    client: Client | str | Path,
    topic: str,
    *,
    since: "Place | None" = None,
    until: "Place | None" = None,
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    headers: bool = False,
    decode: Literal["utf8"] | Kind | Values | None = None,
    on_misfit: Callable[[Misfit], None] | None = None,
    batch_rows: int = BATCH_ROWS,
    durable_only: bool = False,
    isolation: Isolation = READ_UNCOMMITTED,
    on_out_of_range: OutOfRange = "error",
    on_gap: Callable[[ConsumerGap], None] | None = None,
    decompressed_batch_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX,
) -> "ArrowReader":
    """The records of ``topic`` as a stream of ``pyarrow.RecordBatch``, with the columns of Spark's Kafka source.

    ``client`` is a Client, HOST:PORT, or the Path of a log directory, seglog's or Kafka's, whose files are then read
    without a broker; see ``seglog.directory``. ``since`` and ``until`` are ``start`` and ``until`` of
    ``Client.consumer``: an offset, {partition: offset}, an aware datetime, or text such as "-1h" or "2019-01-01";
    ``since`` defaults to "earliest". This call fixes the start and end of every partition; later appends are not read.
    Records are in order within a partition.

    ``columns`` are names of ``SCHEMA``, or "headers", in any order; other columns are not decoded. ``headers`` adds the
    headers. ``decode`` says what values are, as Values or by the name of a kind alone; "utf8" makes strings of keys and
    values. For one that does not fit the reader raises ValueError, which names the record; with ``on_misfit`` it calls
    that, and has null there; so for a timestamp beyond microseconds, which is a CorruptRecordError otherwise. A record
    batch has at most ``batch_rows`` rows, of one partition. Memory is bounded by a
    few times the larger of 16 MiB and ``decompressed_batch_bytes_max``, whatever the topic's size. ``durable_only``,
    ``isolation``, ``on_out_of_range`` and ``on_gap`` are those of ``Client.consumer``.

    Raises what ``connect`` and ``Client.consumer`` raise, and ValueError for unknown columns, for a schema that is
    none, and for text that is a path instead of an address; RegistryError where a registry has no schema of the topic.
    """
    schema = schema_of(columns, headers=headers)
    decoded, decoders = _decoders(decode, topic, schema)
    if batch_rows < 1:
        raise ValueError(f"batch_rows is 1 or more, not {batch_rows}")
    source: Client | LogDirectory
    owned = None
    if isinstance(client, Path):
        source = LogDirectory(client)
    elif isinstance(client, Client):
        source = client
    else:
        _check_no_path(client)
        source = owned = connect(client)
    met: list[ConsumerGap] = []
    try:
        consumer = source.consumer(
            topic,
            partitions=partitions,
            start="earliest" if since is None else since,
            until=until,
            durable_only=durable_only,
            isolation=isolation,
            on_out_of_range=on_out_of_range,
            on_gap=met.append,
            partition_bytes=PIECE_BYTES,
        )
    except BaseException:
        if owned is not None:
            owned.close()
        raise
    return ArrowReader(
        consumer, owned, schema, decoded, decoders, batch_rows, decompressed_batch_bytes_max, met, on_gap, on_misfit
    )


def sample(client: Client, topic: str, records: int = 10_000) -> Iterator[bytes | None]:
    """About so many values of a topic, from the begin and from the end of each partition."""
    places = [place for place in client.offsets(topic) if place.latest > place.earliest]
    each = -(-records // max(1, 2 * len(places)))
    for place in places:
        head = min(place.earliest + each, place.latest)
        for since, until in ((place.earliest, head), (max(head, place.latest - each), place.latest)):
            there = {place.partition: since}, {place.partition: until}
            for batch in read_arrow(
                client, topic, since=there[0], until=there[1], partitions=[place.partition], columns=["value"]
            ):
                yield from batch.column("value").to_pylist()


def _decoders(
    decode: Literal["utf8"] | Kind | Values | None, topic: str, schema: pa.Schema
) -> tuple[pa.Schema, Mapping[str, Decode]]:
    """The schema that is shown in place of ``schema``, and what makes its columns, by name."""
    values = Values("string" if decode == "utf8" else decode or "bytes") if not isinstance(decode, Values) else decode
    kind, decoder = values.for_topic(topic).decoder()
    names = {"key", "value"} if decode == "utf8" else {"value"}
    shown = pa.schema([field.with_type(kind) if field.name in names else field for field in schema])
    return shown, {} if values.kind == "bytes" else dict.fromkeys(names, decoder)


def _check_no_path(text: str) -> None:
    """Raises ValueError for text that is a path or names a directory here, instead of waiting for such a broker."""
    if ("/" in text and "://" not in text) or Path(text).is_dir():
        raise ValueError(
            f"{text!r} is taken for the address of a broker, HOST:PORT; to read the files of a log directory pass "
            f"pathlib.Path({text!r})"
        )


@dataclass(eq=False, repr=False)
class ArrowReader:
    """A stream of ``pyarrow.RecordBatch``, made by ``read_arrow``; one thread at a time.

    Has the methods of ``pyarrow.RecordBatchReader`` and replaces one wherever Arrow's stream interface is supported:
    ``pyarrow.dataset.write_dataset``, Polars, DuckDB, and ``write_arrow``. It holds a connection, or a file, until its
    end is reached, it is closed, or its ``with`` block is left. It can be read once: reading again at its end raises
    ClientClosedError instead of returning no rows.

    Raises CorruptRecordError for unreadable records, after all records before them have been returned:
    ``read_arrow(…, since=reader.positions() | {error.partition: error.next_offset})`` continues after them.
    """

    consumer: InitVar["Consumer | DirectoryConsumer"]
    _owned: Client | None  # closed with the reader
    _stored: pa.Schema  # the same columns, with the types that they are decoded to
    schema: pa.Schema
    """The schema of every record batch."""
    _decoders: Mapping[str, Decode]
    _batch_rows: int
    _size_limit: int
    _met: list[ConsumerGap]  # gaps between batches, from the consumer; those inside one are found when it is decoded
    _on_gap: Callable[[ConsumerGap], None] | None
    _on_misfit: Callable[[Misfit], None] | None

    def __post_init__(self, consumer: "Consumer | DirectoryConsumer") -> None:
        self.topic = consumer.topic
        self.gaps = GapLog()
        """Offsets without a record encountered so far."""
        self._consumer: Consumer | DirectoryConsumer | None = consumer
        self._positions = consumer.positions()
        self._batches = self._read(consumer)
        self._over: str | None = None  # why no more can be read; None while there may be more

    # --- Reading ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Itself. Raises ClientClosedError at the end of the stream, where a loop would find no rows."""
        if self._over is not None:
            raise ClientClosedError(self._over)
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._over is not None and self._over != _READ:
            raise ClientClosedError(self._over)  # after an error, StopIteration would look like the end
        try:
            return next(self._batches)
        except StopIteration:
            self._over = _READ
            raise
        except BaseException as error:
            self._over = (
                f"the reader ended with an error ({error}); continue with another one: "
                "read_arrow(..., since=reader.positions())"
            )
            raise

    def read_next_batch(self) -> pa.RecordBatch:
        """The next record batch; StopIteration at the end."""
        return next(self)

    def read_all(self) -> pa.Table:
        """All remaining rows as one table. Raises ClientClosedError at the end of the stream."""
        return pa.Table.from_batches(list(self), self.schema)

    def read_pandas(self, **options: Any) -> Any:
        """All remaining rows as a DataFrame; ``options`` are those of ``pyarrow.Table.to_pandas``."""
        return self.read_all().to_pandas(**options)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's stream interface over the remaining rows."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The remaining rows as a ``pyarrow.RecordBatchReader``, for libraries that need that class."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def positions(self) -> dict[int, int]:
        """The offset of the next row of every partition, as ``since`` takes it, for example for the next run."""
        return dict(self._positions)

    def _read(self, consumer: "Consumer | DirectoryConsumer") -> Iterator[pa.RecordBatch]:
        try:
            for piece in pieces(consumer.batches(), PIECE_BYTES, lambda: consumer.has_received):
                yield from self._decoded(piece)
                piece.clear()  # its memory is that of the next fetch
            self._tell(())
            self._positions = consumer.positions()
        finally:
            self._let_go()

    def _decoded(self, piece: list[FetchedBatch]) -> Iterator[pa.RecordBatch]:
        first, last = piece[0], piece[-1]
        batches = read_batches(one_buffer([batch.data for batch in piece]))
        inside: list[ConsumerGap] = []
        try:
            for decoded in decode_verified(
                batches,
                self.topic,
                first.partition,
                self._stored,
                start=first.start_offset,
                end=last.end_offset,
                decompressed_batch_bytes_max=self._size_limit,
                records_max=self._batch_rows,
                on_misfit=self._on_misfit,
            ):
                inside += decoded.gaps
                yield from self._slices(decoded, first.partition)
        finally:
            self._tell(inside)

    def _slices(self, decoded: DecodedRecords, partition: int) -> Iterator[pa.RecordBatch]:
        rows = self._batch_rows
        for start in range(0, len(decoded.offsets), rows):
            part = self._shown(decoded.table.slice(start, rows), decoded.offsets[start:], partition)
            self._positions[partition] = int(decoded.offsets[start + part.num_rows - 1]) + 1
            yield part

    def _shown(self, part: pa.RecordBatch, offsets: Int64s, partition: int) -> pa.RecordBatch:
        """``part`` with the types of the schema."""
        if not self._decoders:
            return part
        columns = []
        for stored, field in zip(part.columns, self.schema, strict=True):
            column = stored
            if decode := self._decoders.get(field.name):
                column, misfits = decode(stored)
                for row, reason in misfits:
                    value = stored[row].as_py()
                    self._refuse(Misfit(self.topic, partition, int(offsets[row]), reason, value), field.name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _refuse(self, misfit: Misfit, name: str) -> None:
        if self._on_misfit is None:
            where = f"the {name} of offset {misfit.offset} in {misfit.topic}-{misfit.partition}"
            raise ValueError(f"{where} is {misfit.reason}; read without decode, or have null there with on_misfit")
        self._on_misfit(misfit)

    def _tell(self, inside: Sequence[ConsumerGap]) -> None:
        """Report the gaps inside and between the batches of a piece, in order."""
        for gap in sorted((*self._met, *inside), key=lambda gap: gap.start):
            self.gaps.add(gap)
            if self._on_gap is not None:
                self._on_gap(gap)
        self._met.clear()

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection; unread rows are dropped. Idempotent."""
        self._over = "the reader is closed"
        self._let_go()

    def _let_go(self) -> None:
        consumer, owned = self._consumer, self._owned
        self._consumer = self._owned = None
        if consumer is not None:
            consumer.close()
        if owned is not None:
            owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- Pieces -----------------------------------------------------------------------------------------------------------


def pieces(
    batches: Iterable[FetchedBatch], piece_bytes: int, has_received: Callable[[], bool] = lambda: True
) -> Iterator[list[FetchedBatch]]:
    """Consecutive batches of one partition, about ``piece_bytes`` at a time: enough for array operations.

    Where another batch has to be fetched, as ``has_received`` says, a piece that is worth decoding comes before that,
    while it is in the processor's cache.
    """
    piece: list[FetchedBatch] = []
    size = 0
    try:
        for batch in batches:
            if piece and (
                size >= piece_bytes
                or batch.partition != piece[0].partition
                or (size >= piece_bytes * _WORTH_DECODING and batch.data.obj is not piece[-1].data.obj)
            ):
                yield piece
                piece, size = [], 0
            piece.append(batch)
            size += len(batch.data)
            del batch
            if size >= piece_bytes * _WORTH_DECODING and not has_received():
                yield piece
                piece, size = [], 0
    except SeglogError:
        if piece:
            yield piece  # batches before the error are yielded first
        raise
    if piece:
        yield piece


def one_buffer(views: Sequence[memoryview]) -> Buffer:
    """The concatenated bytes of ``views``; without a copy where they are contiguous in memory, as fetched batches are.

    A copy takes more than half the time of decoding them.
    """
    first, last = views[0], views[-1]
    if all(view.obj is first.obj for view in views):
        whole = memoryview(first.obj).cast("B")
        start, stop = (pa.py_buffer(view).address - pa.py_buffer(whole).address for view in (first, last))
        if stop + len(last) - start == sum(map(len, views)):  # they do not overlap, so there is nothing between
            return whole[start : stop + len(last)]
    return b"".join(views)
