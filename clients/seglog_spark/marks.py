"""Marks: how a task that is run again finds out what it has written already.

A batch is appended whole or not at all, so one header on its first record speaks for all of it: which query, which
micro-batch (epoch), which task, and how many of that task's rows for this partition lie in batches up to this one. The
rows of a task and their order are the same when a micro-batch is run again; so rows [``rows`` - records of the batch,
``rows``) are those that need not be written again.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec, compress
from seglog_protocol.errors import SeglogError
from seglog_protocol.frames import Buffer
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, seal_batch
from seglog_protocol.records import Headers, decode_records, encode_record, iter_records

MARK_HEADER: Final = "seglog.spark"

MARK_BYTES_MAX: Final = 512
"""What a mark adds to a batch at most, before compression."""


class OtherRowsError(SeglogError):
    """A job or a micro-batch that is run again has other rows than before; they are not written."""


Rows = tuple[int, int]
"""A task's rows for one partition, counted from 0: first, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Whose rows: ``query`` is the query's id or the batch job's, ``epoch`` its micro-batch (0 for a job)."""

    query: str
    epoch: int
    task: int


@dataclass(frozen=True, slots=True)
class Mark:
    """``rows`` of ``writing`` are in this partition up to the end of the marked batch; keys went to ``partitions``.

    ``content`` tells what rows these are, see ``fingerprints.total``; only a batch job says it.
    """

    writing: Writing
    rows: int
    partitions: int
    content: int | None = None

    def encode(self) -> bytes:
        """The header's value, readable by people."""
        w = self.writing
        fields = {"query": w.query, "epoch": w.epoch, "task": w.task, "rows": self.rows, "partitions": self.partitions}
        return json.dumps(fields if self.content is None else fields | {"content": self.content}).encode()


def read_mark(headers: Headers) -> Mark | None:
    """The mark among a record's headers; None if there is none, or not a whole one."""
    text = next((value for key, value in reversed(headers) if key == MARK_HEADER), None)
    try:
        fields = json.loads(text or b"")
        return Mark(
            Writing(str(fields["query"]), int(fields["epoch"]), int(fields["task"])),
            int(fields["rows"]),
            int(fields["partitions"]),
            int(fields["content"]) if "content" in fields else None,
        )
    except (ValueError, KeyError, TypeError):
        return None


def marked(batch: Buffer, mark: Mark, codec: Codec) -> bytes:
    """An uncompressed batch with ``mark`` on its first record, compressed."""
    header = parse_header(batch)
    first = next(iter_records(header, batch))
    delta = first.timestamp - header.base_timestamp
    plain = encode_record(delta, 0, first.key, first.value, first.headers)
    headers = (*first.headers, (MARK_HEADER, mark.encode()))
    records = encode_record(delta, 0, first.key, first.value, headers) + batch[HEADER_SIZE + len(plain) :]
    return seal_batch(header._replace(attributes=codec), compress(codec, records))


def part_of(batch: Buffer, rows: Rows) -> bytes:
    """Some records of an uncompressed batch, as a batch."""
    header = parse_header(batch)
    records = decode_records(header, batch)[rows[0] : rows[1]]
    return encode_batch((record.timestamp, record.key, record.value, record.headers) for record in records)


def without(rows: Rows, written: Iterable[Rows]) -> list[Rows]:
    """What is left of ``rows`` when all in ``written`` are taken away; in order."""
    left = [rows]
    for first, end in written:
        left = [
            piece
            for start, stop in left
            for piece in ((start, min(stop, first)), (max(start, end), stop))
            if piece[0] < piece[1]
        ]
    return left
