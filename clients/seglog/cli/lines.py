"""The input of ``seglog produce``, line by line: what is wrong with a line, its key and timestamp, its record."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any, BinaryIO, Final, NoReturn

from seglog.cli.arguments import Options
from seglog.cli.exits import InputError
from seglog.core.accumulator import record_bytes_max
from seglog.core.errors import count_of
from seglog.core.moments import to_epoch_ms
from seglog.producer import Producer
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import HEADER_SIZE

LINE_BYTES_MAX: Final = 100 * 1024 * 1024
"""No record can be larger; a file without line ends must not fill the memory before that is noticed."""

_INT64_MAX: Final = 2**63 - 1
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
        """A record was sent, with its own timestamp (ms) or without one."""
        self.sent += 1
        if timestamp is not None:
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
    json_lines = (
        JsonLines(options.key_field, options.timestamp_field, options.timestamp_unit)
        if options.format == "json"
        else None
    )
    for number, line in enumerate(_lines(source, bar), 1):
        key: bytes | None = None
        timestamp: int | None = None
        try:
            if len(line) > LINE_BYTES_MAX:
                raise InputError(f"longer than {LINE_BYTES_MAX:,} bytes")  # noqa: TRY301 - a bad line like others
            _check_size(producer, key, line, headers)  # before it is parsed, which takes many times its size
            if json_lines is not None:
                if not line or line.isspace():
                    continue
                key, timestamp = json_lines.parse(line)
                _check_size(producer, key, line, headers)
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
        producer.send(line, key, timestamp=timestamp, partition=options.partition, headers=headers)
        tally.add_sent(timestamp)
    return None


def _check_size(producer: Producer, key: bytes | None, line: bytes, headers: list[tuple[str, bytes]]) -> None:
    """InputError for a line that no batch of the topic can hold, compressed as it would be."""
    limit, options = producer.batch_bytes_max, producer.options
    pairs = tuple(headers)
    if HEADER_SIZE + record_bytes_max(key, line, pairs) <= limit:
        return
    size = len(encode_batch([(0, key, line, pairs)], codec=options.codec, level=options.compression_level))
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


# --- JSON -------------------------------------------------------------------------------------------------------------


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Lines of JSON, each a record's value byte for byte, and which of their fields mean something."""

    key_field: str | None = None
    timestamp_field: str | None = None
    timestamp_unit: str = "ms"

    def parse(self, line: bytes) -> tuple[bytes | None, int | None]:
        """The key, and the timestamp in epoch ms (None where no field was named); InputError for a bad line."""
        try:
            value = _decoder.decode(line.decode())
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 at byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from None
        if self.key_field is None and self.timestamp_field is None:
            return None, None
        if not isinstance(value, dict):
            raise InputError("not a JSON object, so it has no fields")
        key = None if self.key_field is None else _key(_field(value, self.key_field))
        if self.timestamp_field is None:
            return key, None
        return key, self._timestamp(_field(value, self.timestamp_field))

    def _timestamp(self, value: Any) -> int:
        name = self.timestamp_field
        if self.timestamp_unit == "iso":
            try:
                moment = datetime.fromisoformat(value)
            except (TypeError, ValueError):
                raise InputError(f"field {name!r} is not an ISO 8601 time: {_shown(value)}") from None
            timestamp = to_epoch_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        elif isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise InputError(f"field {name!r} is not a number: {_shown(value)}")
        elif self.timestamp_unit == "s":
            timestamp = value * 1000 if isinstance(value, int) else round(value * 1000)
        elif value != int(value):
            raise InputError(f"field {name!r} is not a whole number of milliseconds: {_shown(value)}")
        else:
            timestamp = int(value)
        if not 0 <= timestamp <= _INT64_MAX:
            raise InputError(f"field {name!r} is not a time since 1970: {_shown(value)}")
        return timestamp


def _field(value: dict[str, Any], name: str) -> Any:
    try:
        return value[name]
    except KeyError:
        raise InputError(f"no field {name!r}") from None


def _key(value: Any) -> bytes | None:
    """Text as it is, null for no key, anything else as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the key {_shown(value)} holds half a surrogate pair") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
