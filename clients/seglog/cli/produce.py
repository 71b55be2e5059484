"""``seglog produce``."""

import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from seglog.batching import record_bytes_max
from seglog.cli.arguments import Options
from seglog.cli.common import open_client, print_json, warn
from seglog.cli.exits import OK, InputError, UsageError
from seglog.cli.json_lines import JsonLines
from seglog.client import Client
from seglog.formatting import count_of, duration_of
from seglog.producer import Producer
from seglog.timestamps import TimestampWarning
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import ClientError, DeliveryFailed, SeglogError, UnknownTopicError
from seglog_protocol.messages import TopicDescription
from seglog_protocol.record_batch import HEADER_SIZE

SEGMENTS_EXPECTED: Final = 10
"""More segments than this, begun by record timestamps alone, surprise: most have far fewer bytes than segment.bytes."""

LINE_BYTES_MAX: Final = 100 * 1024 * 1024
"""No record can be larger; a file without line ends must not fill the memory before that is noticed."""


_STDIN: Final = "-"
_VARYING: Final = re.compile(r"[\d,]+")


@dataclass(slots=True)
class Tally:
    """What has happened so far."""

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


def run(options: Options) -> int:
    """Send the input's records; a bad line stops the run with everything before it acknowledged."""
    if options.format != "json" and (options.key_field or options.timestamp_field):
        raise UsageError("--key-field and --timestamp-field name fields of JSON; add --format json")
    started = time.monotonic()
    tally = Tally()
    with ExitStack() as stack:
        source: BinaryIO = (
            sys.stdin.buffer if options.file == _STDIN else stack.enter_context(Path(options.file).open("rb"))
        )
        client = stack.enter_context(open_client(options))
        topic = _topic(client, options.topic)
        warnings.simplefilter("always", TimestampWarning)
        bar = stack.enter_context(_progress_bar(options, source))
        producer = stack.enter_context(
            client.producer(
                options.topic,
                ack=options.ack,
                linger_ms=options.linger_ms,
                batch_bytes=options.batch_bytes,
                compression=options.compression,
                delivery_timeout=options.delivery_timeout,
            )
        )
        try:
            bad = _send_all(source, producer, options, tally, bar)
            producer.close()
        except KeyboardInterrupt as interrupt:
            acknowledged = tally.sent - producer.abort()
            interrupt.add_note(f"{count_of(tally.sent, 'record')} read, {acknowledged:,} acknowledged")
            raise
        except DeliveryFailed as error:
            stored = tally.sent - error.records
            sent = count_of(tally.sent, "record")
            is_refused = any(_is_refusal(reason) for _, _, _, reason in error.failures)
            why = "; one bad record fails its whole batch" if is_refused else ""
            rest = "; the rest of the input was not read" if tally.is_cut else ""
            error.add_note(f"acknowledged: {stored:,} of {sent}{why}{rest}")
            raise
    tally.expired = producer.expired_on_arrival
    _report(options, topic, tally, time.monotonic() - started)
    if bad is not None:
        raise bad
    if tally.bad and not tally.sent:
        raise InputError(f"every line is bad, {tally.bad:,} in all, and nothing was sent; {tally.commonest()}")
    return OK


def _is_refusal(reason: BaseException) -> bool:
    """Whether the records themselves were not acceptable, rather than not answered for in time."""
    return isinstance(reason, SeglogError) and not isinstance(reason, ClientError) and not reason.retriable


def _topic(client: Client, name: str) -> TopicDescription:
    """The topic to send to; created, with a word about it, where the broker does that."""
    try:
        return client.describe_topic(name)
    except UnknownTopicError as error:
        if not client.broker.auto_create_topics:
            raise
        hint = f" (did you mean {error.nearest}?)" if error.nearest else ""
    made = client.create_topic(name, exist_ok=True)
    warn(f"topic {name} did not exist{hint} and was created with {count_of(made.partitions, 'partition')}")
    return client.describe_topic(name)


def _send_all(source: BinaryIO, producer: Producer, options: Options, tally: Tally, bar: Any) -> InputError | None:
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


class _NoBar:
    """In place of a progress bar where no terminal shows one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, size: int) -> None:
        """Nothing to show."""


def _progress_bar(options: Options, source: BinaryIO) -> Any:
    """A bar over a file's bytes, in a terminal only."""
    if options.file == _STDIN or options.json or not sys.stderr.isatty():
        return _NoBar()
    from tqdm import tqdm  # noqa: PLC0415 - slow to import, and seldom seen

    size = Path(options.file).stat().st_size
    return tqdm(total=size or None, unit="B", unit_scale=True, desc=options.topic, leave=False, disable=source.isatty())


def _many_segments(topic: TopicDescription, tally: Tally) -> str | None:
    """A warning where the records' timestamps alone begin many segments; None where they do not."""
    entry = (topic.config or {}).get("segment.ms")
    if entry is None or tally.first_ms is None:
        return None
    span, segment_ms = tally.last_ms - tally.first_ms, int(entry.value)
    if span <= SEGMENTS_EXPECTED * segment_ms:
        return None
    segments = count_of(span // segment_ms + 1, "segment")
    return (
        f"the timestamps of these records span {duration_of(span)}, and segment.ms={entry.value} begins a segment for "
        f"every {duration_of(segment_ms)} of them in each partition, up to {segments}; "
        f"for fewer: seglog topic alter {topic.name} --config segment.ms=3650d, before producing"
    )


def _report(options: Options, topic: TopicDescription, tally: Tally, seconds: float) -> None:
    if tally.expired:
        entry = (topic.config or {}).get("retention.ms")
        keeps = "" if entry is None else f" (retention.ms={entry.value})"
        warn(
            f"warning: {count_of(tally.expired, 'record')} expired on arrival: older than {topic.name} keeps{keeps} "
            "and will be deleted"
        )
    if (many := _many_segments(topic, tally)) is not None:
        warn(f"warning: {many}")
    if options.json:
        print_json(
            {
                "topic": topic.name,
                "records": tally.sent,
                "bad_lines": tally.bad,
                "expired_on_arrival": tally.expired,
                "commonest_bad_line": tally.commonest() if tally.bad else None,
                "partitions": topic.partitions,
                "seconds": round(seconds, 3),
                "ack": options.ack,
            }
        )
        return
    skipped = f", {count_of(tally.bad, 'bad line')} skipped: {tally.commonest()}" if tally.bad else ""
    rate = f" ({tally.sent / seconds:,.0f}/s)" if tally.sent > 1 and seconds > 0 else ""
    where = f"{topic.name} ({count_of(topic.partitions, 'partition')})"
    warn(f"{count_of(tally.sent, 'record')} to {where} in {seconds:.1f} s{rate}, ack {options.ack}{skipped}")
