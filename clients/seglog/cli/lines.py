"""The input of ``seglog produce``, sent line by line, and what was wrong with lines."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from seglog.cli.arguments import Options
from seglog.cli.common import warn
from seglog.cli.exits import InputError
from seglog.cli.input_records import InputRecord, JsonLines, TextLines
from seglog.core.accumulator import record_bytes_max
from seglog.core.errors import count_of
from seglog.producer import Producer
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import HEADER_SIZE

LINE_BYTES_MAX: Final = 100 * 1024 * 1024
"""No record can be larger; a file without line ends must not fill the memory before that is noticed."""

Parse = Callable[[bytes], InputRecord]

_VARYING: Final = re.compile(r"[\d,]+")


@dataclass(slots=True)
class Tally:
    """Counts of the records of this run so far."""

    sent: int = 0
    bad: int = 0
    expired: int = 0
    first_ms: int | None = None  # the smallest timestamp that a record brought
    last_ms: int = 0  # the largest
    is_cut: bool = False  # not all of the input was read, because no broker answers
    reasons: Counter[str] = field(default_factory=Counter)  # what was wrong with bad lines, by kind
    examples: dict[str, str] = field(default_factory=dict)  # the first of each kind

    def add_sent(self, timestamp: int | None) -> None:
        """A record was sent, with its own timestamp (ms) or without one (-1, None)."""
        self.sent += 1
        if timestamp is not None and timestamp >= 0:
            self.first_ms = timestamp if self.first_ms is None else min(self.first_ms, timestamp)
            self.last_ms = max(self.last_ms, timestamp)

    def add_bad(self, number: int, error: InputError) -> None:
        """Line ``number`` is bad; reasons that differ in a number or in what is quoted are of one kind."""
        kind = _VARYING.sub("", str(error).partition(":")[0])
        self.bad += 1
        self.reasons[kind] += 1
        self.examples.setdefault(kind, f"line {number:,}: {error}")

    def commonest(self) -> str:
        """Why most bad lines are bad, with the first of them."""
        kind, count = self.reasons.most_common(1)[0]
        return f"{self.examples[kind]}" + (f" (and {count - 1:,} like it)" if count > 1 else "")


def send_all(source: BinaryIO, producer: Producer, options: Options, tally: Tally, bar: Any) -> InputError | None:
    """Send line by line; the bad line that ended it, if one did."""
    headers = [(name, value.encode()) for name, value in options.header]
    if options.format == "raw":
        producer.send(source.read(LINE_BYTES_MAX + 1), partition=options.partition, headers=headers)
        tally.sent = 1
        return None
    parse: Parse | None = None
    is_value = False
    for number, line in enumerate(_lines(source, bar), 1):
        try:
            if len(line) > LINE_BYTES_MAX:
                raise InputError(f"longer than {LINE_BYTES_MAX:,} bytes")  # noqa: TRY301 - a bad line like others
            if options.format == "json" and (not line or line.isspace()):
                continue
            if parse is None:
                parse, is_value = _parser(options, line)
            if is_value:
                _check_size(producer, InputRecord(None, line), headers)  # before it is parsed, which takes many times
            record = parse(line)
            _check_size(producer, record, headers)
        except InputError as error:
            if not options.skip_bad:
                return InputError(
                    f"line {number:,} is bad: {error}; {count_of(tally.sent, 'record')} before it sent "
                    "(--skip-bad counts bad lines instead)"
                )
            tally.add_bad(number, error)
            continue
        if producer.has_expired:
            tally.is_cut = True  # else each bufferful would wait once more as long
            return None
        producer.send(
            record.value,
            record.key,
            timestamp=record.timestamp,
            partition=options.partition,
            headers=[*record.headers, *headers],
        )
        tally.add_sent(record.timestamp)
    return None


def _parser(options: Options, first: bytes) -> tuple[Parse, bool]:
    """What makes records of lines, of which this is the first, and whether a whole line is the value of its record."""
    if options.format == "text":
        keys = options.keys or options.key_separator is not None
        separator = "\t" if options.key_separator is None else options.key_separator
        null = None if options.null is None else options.null.encode()
        return TextLines(keys, options.headers, separator.encode(), null).parse, not (keys or options.headers)
    from seglog.cli import envelope

    names_fields = options.key_field is not None or options.timestamp_field is not None
    if options.envelope is None and not names_fields and envelope.is_envelope(first):
        warn(
            "note: these lines are records as `seglog consume --format json` prints them, and are sent as such, with "
            "their keys, values, headers and timestamps; --no-envelope sends the lines themselves"
        )
    elif not options.envelope:
        return JsonLines(options.key_field, options.timestamp_field, options.timestamp_unit).parse, True
    return envelope.parse, False


def _check_size(producer: Producer, record: InputRecord, headers: list[tuple[str, bytes]]) -> None:
    """InputError for a record that no batch of the topic can hold, compressed as it would be."""
    limit, options = producer.batch_bytes_max, producer.options
    pairs = (*record.headers, *headers)
    if HEADER_SIZE + record_bytes_max(record.key, record.value, pairs) <= limit:
        return
    stored = (0, record.key, record.value, pairs)
    size = len(encode_batch([stored], codec=options.codec, level=options.compression_level))
    if size > limit:
        raise InputError(
            f"{size:,} bytes are more than a batch of {producer.topic} can hold ({limit:,}, the smaller of "
            "max.message.bytes and segment.bytes)"
        )


def _lines(source: BinaryIO, bar: Any) -> Iterator[bytes]:
    """Lines without their ends (LF or CR LF); one that is too long comes cut, and is known by that."""
    while line := source.readline(LINE_BYTES_MAX + 2):
        bar.update(len(line))
        if len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
            yield line
            while (rest := source.readline(1 << 20)) and not rest.endswith(b"\n"):
                bar.update(len(rest))
            continue
        yield line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")
