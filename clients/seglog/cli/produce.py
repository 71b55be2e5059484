"""``seglog produce``."""

import os
import re
import sys
import time
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Command, Option, flag
from seglog.cli.common import can_ask, is_yes, open_client, print_json, warn
from seglog.cli.exits import OK, InputError, UsageError
from seglog.cli.option_types import COUNT, MILLISECONDS, PAIR, SEPARATOR, SIZE, SOME_SECONDS
from seglog.cli.parameters import ack, compression, topic
from seglog.core.errors import count_of, duration_of
from seglog_protocol.errors import ClientError, DeliveryFailed, SeglogError, UnknownTopicError

if TYPE_CHECKING:
    from seglog.cli.lines import Tally
    from seglog.client import Client
    from seglog_protocol.messages import TopicDescription

SEGMENTS_EXPECTED: Final = 10
"""More segments than this, begun by record timestamps alone, surprise: most have far fewer bytes than segment.bytes."""

_STDIN: Final = "-"
_NUMBER: Final = re.compile(r"[._-]?v?[0-9]+$")


def run(options: Options) -> int:
    """Send the input's records; a bad line stops the run with everything before it acknowledged."""
    _check_format(options)
    from pathlib import Path

    from seglog.cli.lines import Tally, send_all
    from seglog.core.timestamps import TimestampWarning

    started = time.monotonic()
    tally = Tally()
    with ExitStack() as stack:
        source: BinaryIO = (
            sys.stdin.buffer if options.file == _STDIN else stack.enter_context(Path(options.file).open("rb"))
        )
        client = stack.enter_context(open_client(options))
        described = _topic(client, options)
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
            bad = send_all(source, producer, options, tally, bar)
            producer.close()
        except KeyboardInterrupt as interrupt:
            acknowledged = tally.sent - producer.abort()
            interrupt.add_note(f"{count_of(tally.sent, 'record')} read, {acknowledged:,} acknowledged")
            raise
        except DeliveryFailed as error:
            stored = tally.sent - error.records
            sent = count_of(tally.sent, "record")
            reasons = [reason for _, _, _, reason in error.failures if isinstance(reason, SeglogError)]
            # The records themselves were not acceptable, rather than not answered for in time.
            is_refused = any(not isinstance(reason, ClientError) and not reason.retriable for reason in reasons)
            why = "; one bad record fails its whole batch" if is_refused else ""
            rest = "; the rest of the input was not read" if tally.is_cut else ""
            error.add_note(f"acknowledged: {stored:,} of {sent}{why}{rest}")
            raise
    tally.expired = producer.expired_on_arrival
    _report(options, described, tally, time.monotonic() - started)
    if bad is not None:
        raise bad
    if tally.bad and not tally.sent:
        raise InputError(f"every line is bad, {tally.bad:,} in all, and nothing was sent; {tally.commonest()}")
    return OK


def _check_format(options: Options) -> None:
    """Raises UsageError for options that do not go with the format, or with each other."""
    names_fields = options.key_field is not None or options.timestamp_field is not None
    if options.format != "json" and names_fields:
        raise UsageError("--key-field and --timestamp-field name fields of JSON; add --format json")
    if options.format != "json" and options.envelope is not None:
        raise UsageError("--envelope and --no-envelope say what lines of JSON are; add --format json")
    if options.envelope and names_fields:
        raise UsageError("--envelope has key and timestamp in it: leave out --key-field and --timestamp-field")
    if options.format != "text" and (options.keys or options.headers or options.key_separator or options.null):
        raise UsageError("--keys, --headers, --key-separator and --null are for --format text")


def _topic(client: "Client", options: Options) -> "TopicDescription":
    """The topic to send to; created, with a word about it, where the broker does that or ``--create`` says so.

    A name that resembles an existing topic's is taken for a slip: whoever sits at a terminal is asked; without one
    it is UnknownTopicError.
    """
    name = options.topic
    try:
        return client.describe_topic(name)
    except UnknownTopicError as error:
        if not options.create:
            if not client.broker.auto_create_topics:
                raise
            _check_slip(name, error.nearest)
    made = client.create_topic(name, exist_ok=True)
    warn(f"topic {name} did not exist and was created with {count_of(made.partitions, 'partition')}")
    return client.describe_topic(name)


def _check_slip(name: str, nearest: str) -> None:
    """Raises UnknownTopicError, or InputError where the answer was no.

    A name that differs by a number at its end alone is another version, not a slip.
    """
    if not nearest or _NUMBER.sub("", name) == _NUMBER.sub("", nearest):
        return
    if not can_ask():
        raise UnknownTopicError(
            f"there is no topic {name}; did you mean {nearest}? To make a new topic of that name, add --create",
            topic=name,
            nearest=nearest,
        )
    if not is_yes(f"There is no topic {name}. Did you mean {nearest}? Create a new topic {name}?"):
        raise InputError(f"topic {name} is not created, and nothing is sent")


class _NoBar(ExitStack):
    """In place of a progress bar where no terminal shows one."""

    def update(self, size: int) -> None:
        """Nothing to show."""


def _progress_bar(options: Options, source: BinaryIO) -> Any:
    """A bar over a file's bytes, in a terminal only."""
    if options.file == _STDIN or options.json or not sys.stderr.isatty():
        return _NoBar()
    from tqdm import tqdm

    size = os.fstat(source.fileno()).st_size
    return tqdm(total=size or None, unit="B", unit_scale=True, desc=options.topic, leave=False, disable=source.isatty())


def _many_segments(described: "TopicDescription", tally: "Tally") -> str | None:
    """A warning where the records' timestamps alone begin many segments; None where they do not."""
    entry = (described.config or {}).get("segment.ms")
    if entry is None or tally.first_ms is None:
        return None
    span, segment_ms = tally.last_ms - tally.first_ms, int(entry.value)
    if span <= SEGMENTS_EXPECTED * segment_ms:
        return None
    segments = count_of(span // segment_ms + 1, "segment")
    return (
        f"the timestamps of these records span {duration_of(span)}, and segment.ms={entry.value} begins a segment for "
        f"every {duration_of(segment_ms)} of them in each partition, up to {segments}; "
        f"for fewer: seglog topic alter {described.name} --config segment.ms=3650d, before producing"
    )


def _report(options: Options, described: "TopicDescription", tally: "Tally", seconds: float) -> None:
    """Say what was sent, with warnings of what will not stay."""
    if tally.expired:
        entry = (described.config or {}).get("retention.ms")
        keeps = "" if entry is None else f" (retention.ms={entry.value})"
        warn(
            f"warning: {count_of(tally.expired, 'record')} expired on arrival: older than {described.name} "
            f"keeps{keeps} and will be deleted"
        )
    if (many := _many_segments(described, tally)) is not None:
        warn(f"warning: {many}")
    if options.json:
        print_json(
            {
                "topic": described.name,
                "records": tally.sent,
                "bad_lines": tally.bad,
                "expired_on_arrival": tally.expired,
                "commonest_bad_line": tally.commonest() if tally.bad else None,
                "partitions": described.partitions,
                "seconds": round(seconds, 3),
                "ack": options.ack,
            }
        )
        return
    skipped = f", {count_of(tally.bad, 'bad line')} skipped: {tally.commonest()}" if tally.bad else ""
    rate = f" ({tally.sent / seconds:,.0f}/s)" if tally.sent > 1 and seconds > 0 else ""
    where = f"{described.name} ({count_of(described.partitions, 'partition')})"
    warn(f"{count_of(tally.sent, 'record')} to {where} in {seconds:.1f} s{rate}, ack {options.ack}{skipped}")


COMMAND: Final = Command(
    "produce",
    runs=run,
    params=[
        topic(),
        click.Argument(["file"], default="-", type=click.Path(), help="What to send; - is standard input."),
        Option(
            ["--format"],
            type=click.Choice(("text", "json", "raw")),
            default="text",
            help="text: each line is a record. json: the same, and each line must be JSON; lines that `seglog consume "
            "--format json` printed become the same records again. raw: the whole input is one record.",
        ),
        flag("--keys", "A line has a key and a separator before the value, with --format text."),
        flag("--headers", "A line begins with headers, NAME=VALUE,NAME=VALUE, and a separator, with --format text."),
        Option(
            ["--key-separator"],
            type=SEPARATOR,
            show_default="a tab",
            help="What is between headers, key and value; implies --keys.",
        ),
        Option(
            ["--null"],
            metavar="TEXT",
            show_default="nothing is",
            help="What a key or a value is where there is none; a value that is none makes a tombstone.",
        ),
        Option(
            ["--envelope/--no-envelope"],
            default=None,
            show_default="as the first line looks",
            help="With --format json: each line is a whole record, as `seglog consume --format json` prints it; or a "
            "value, whatever it looks like.",
        ),
        Option(["--key-field"], metavar="NAME", help="The field that becomes the record's key, with --format json."),
        Option(
            ["--timestamp-field"],
            metavar="NAME",
            help="The field that becomes the record's timestamp, with --format json.",
        ),
        Option(
            ["--timestamp-unit"],
            type=click.Choice(("ms", "s", "iso")),
            default="ms",
            help="How that field is written: milliseconds or seconds since 1970, or ISO 8601.",
        ),
        flag("--skip-bad", "Count bad lines instead of stopping at the first."),
        flag(
            "--create",
            "Create the topic if it is missing. Without this the broker's auto.create.topics.enable decides, and "
            "a name that resembles an existing topic's is asked about on a terminal, and refused elsewhere.",
        ),
        Option(
            ["--partition"],
            type=COUNT,
            show_default="where the key belongs",
            help="Send all records to this partition.",
        ),
        Option(["--header"], type=PAIR, multiple=True, help="A header for every record; repeatable."),
        compression("How batches are compressed."),
        ack(
            "When a record counts as sent. none: at once. os: when it survives a crash of the broker. disk: when it "
            "survives a loss of power."
        ),
        Option(
            ["--linger-ms"], type=MILLISECONDS, default="5", help="How long a batch may wait to fill, in milliseconds."
        ),
        Option(["--batch-bytes"], type=SIZE, default="64KiB", help="The size at which a batch is sent."),
        Option(
            ["--delivery-timeout"],
            type=SOME_SECONDS,
            default="120",
            help="How long a record may take to be acknowledged, attempts to reconnect included.",
        ),
    ],
    example="seglog produce clicks clicks.jsonl --format json --key-field user\n"
    "tail -f access.log | seglog produce access --ack os\n"
    "seglog consume clicks --format json | seglog produce copy --format json",
)
