"""``seglog produce``."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from seglog.cli.arguments import Options
from seglog.cli.common import open_client, print_json, warn
from seglog.cli.exits import OK, InputError, UsageError
from seglog.cli.json_lines import JsonLines
from seglog.client import Client
from seglog.producer import Producer
from seglog.words import count_of
from seglog_protocol.errors import DeliveryFailed, UnknownTopicError
from seglog_protocol.messages import TopicDescription

LINE_BYTES_MAX: Final = 100 * 1024 * 1024
"""No record can be larger; a file without line ends must not fill the memory before that is noticed."""


_STDIN: Final = "-"


@dataclass(slots=True)
class Tally:
    """What has happened so far."""

    sent: int = 0
    bad: int = 0
    expired: int = 0
    expired_before: int = 0  # epoch ms; what is older than this is older than the topic keeps


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
        keeps_ms = _keeps_ms(topic)
        if keeps_ms is not None:
            tally.expired_before = time.time_ns() // 1_000_000 - keeps_ms
        bar = stack.enter_context(_progress_bar(options, source))
        producer = stack.enter_context(
            client.producer(
                options.topic,
                ack=options.ack,
                linger_ms=options.linger_ms,
                batch_bytes=options.batch_bytes,
                compression=options.compression,
            )
        )
        try:
            bad = _send_all(source, producer, options, tally, bar)
            producer.close()
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"{count_of(tally.sent, 'record')} read and handed over until then")
            raise
        except DeliveryFailed as error:
            stored = tally.sent - sum(count for _, _, count, _ in error.failures)
            sent = count_of(tally.sent, "record")
            is_refused = any(not getattr(reason, "retriable", False) for _, _, _, reason in error.failures)
            why = "; one bad record fails the batch it is in" if is_refused else ""
            error.add_note(f"acknowledged: {stored:,} of {sent}{why}")
            raise
    _report(options, topic, tally, time.monotonic() - started)
    if bad is not None:
        raise bad
    return OK


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
            if json_lines is not None:
                if not line or line.isspace():
                    continue
                key, timestamp = json_lines.parse(line)
        except InputError as error:
            if not options.skip_bad:
                return InputError(
                    f"line {number:,} is bad: {error}; {count_of(tally.sent, 'record')} before it sent "
                    "(--skip-bad counts bad lines instead)"
                )
            tally.bad += 1
            continue
        producer.send(line, key, timestamp=timestamp, partition=options.partition, headers=headers)
        tally.sent += 1
        if timestamp is not None and timestamp < tally.expired_before:
            tally.expired += 1
    return None


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
    """Stands in for a progress bar where nobody would see it."""

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


def _keeps_ms(topic: TopicDescription) -> int | None:
    """For how long the topic keeps a record by its own timestamp; None: for ever, or by another clock."""
    config = {key: entry.value for key, entry in (topic.config or {}).items()}
    if "delete" not in config.get("cleanup.policy", "delete"):
        return None
    if config.get("message.timestamp.type") == "LogAppendTime":
        return None
    try:
        keeps = int(config.get("retention.ms", "-1"))
    except ValueError:
        return None
    return keeps if keeps >= 0 else None


def _report(options: Options, topic: TopicDescription, tally: Tally, seconds: float) -> None:
    if tally.expired:
        warn(
            f"warning: {count_of(tally.expired, 'record')} expired on arrival: older than {topic.name} keeps "
            f"(retention.ms={_keeps_ms(topic)}) and to be deleted"
        )
    if options.json:
        print_json(
            {
                "topic": topic.name,
                "records": tally.sent,
                "bad_lines": tally.bad,
                "expired_on_arrival": tally.expired,
                "partitions": topic.partitions,
                "seconds": round(seconds, 3),
                "ack": options.ack,
            }
        )
        return
    skipped = f", {count_of(tally.bad, 'bad line')} skipped" if tally.bad else ""
    rate = f" ({tally.sent / seconds:,.0f}/s)" if tally.sent > 1 and seconds > 0 else ""
    where = f"{topic.name} ({count_of(topic.partitions, 'partition')})"
    warn(f"{count_of(tally.sent, 'record')} to {where} in {seconds:.1f} s{rate}, ack {options.ack}{skipped}")
