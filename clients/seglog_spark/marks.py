"""Marks, by which a repeated task finds the rows it has already written.

A batch is appended whole or not at all, so one header on its first record marks all of it: the query, the micro-batch
(epoch), the task, and the number of that task's rows for this partition up to the end of this batch. A repeated
micro-batch has the same rows in the same order, so rows [``rows`` - records of the batch, ``rows``) are skipped.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from seglog.core.records import Record
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec, compress
from seglog_protocol.errors import SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, seal_batch
from seglog_protocol.records import Headers, decode_records, encode_record, iter_records

MARK_HEADER: Final = "seglog.spark"

MARK_BYTES_MAX: Final = 512
"""Maximum bytes that a mark adds to a batch, before compression."""


class OtherRowsError(SeglogError):
    """A repeated job or micro-batch has other rows than before; they are not written."""


Rows = tuple[int, int]
"""A range of a task's rows for one partition, from 0: first, and end (exclusive)."""


@dataclass(frozen=True, slots=True)
class Writing:
    """The writer of rows: ``query`` is the id of the query or batch job, ``epoch`` the micro-batch (0 for a job)."""

    query: str
    epoch: int
    task: int


@dataclass(frozen=True, slots=True)
class Mark:
    """``rows`` of ``writing`` are in this partition up to the end of the marked batch; keys went to ``partitions``.

    ``content`` is the fingerprint of these rows, see ``fingerprints.total``; only set by batch jobs.
    """

    writing: Writing
    rows: int
    partitions: int
    content: int | None = None

    def encode(self) -> bytes:
        """The header's value, as text."""
        w = self.writing
        fields = {"query": w.query, "epoch": w.epoch, "task": w.task, "rows": self.rows, "partitions": self.partitions}
        return json.dumps(fields if self.content is None else fields | {"content": self.content}).encode()


def is_note(record: Record) -> bool:
    """Whether this is a record of a marks topic, whatever name the sink was given for it."""
    try:
        note = json.loads(record.value or b"")
    except (ValueError, RecursionError):
        return False
    return isinstance(note, dict) and {"target", "topic_id"} <= note.keys()


def read_mark(headers: Headers) -> Mark | None:
    """The mark among a record's headers; None if there is no valid one."""
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
    """The ranges of ``rows`` that are not in ``written``, in order."""
    left = [rows]
    for first, end in written:
        left = [
            piece
            for start, stop in left
            for piece in ((start, min(stop, first)), (max(start, end), stop))
            if piece[0] < piece[1]
        ]
    return left
