"""``seglog consume``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import PLACES, Command, Option, flag
from seglog.cli.common import moment_of, open_client, warn, zone_of
from seglog.cli.exits import OK, UsageError
from seglog.cli.option_types import COUNT, GROUP_NAME, SEPARATOR
from seglog.cli.parameters import isolation, local, partitions, topic, until
from seglog.cli.terminal import is_terminal
from seglog.core.errors import count_of
from seglog.core.moments import format_time
from seglog_protocol.errors import CorruptRecordError, GroupError
from seglog_protocol.texts import disarmed, disarmed_json

if TYPE_CHECKING:
    from seglog.consumer import Consumer
    from seglog.core.records import ConsumerGap, Record

    Formatter = Callable[[Record], bytes]


def run(options: Options) -> int:
    """Print records until the end, ``--until``, ``--count`` or an interrupt."""
    begin = None if options.start is None else moment_of(options.start, options)
    end = None if options.until is None else moment_of(options.until, options)
    notes = GapNotes()
    if options.group is None:
        chosen = {"partitions": options.partition, "on_out_of_range": options.on_out_of_range}
    elif options.partition is not None:
        raise UsageError("--partition does not go with --group, which shares out the partitions itself: leave one out")
    elif options.on_out_of_range != "error":
        raise UsageError(
            "--on-out-of-range does not go with --group, which goes on at --from where an offset is out of range: "
            f"give --from {options.on_out_of_range}"
        )
    else:
        chosen = {"group": options.group}
    with (
        open_client(options) as client,
        client.consumer(
            options.topic,
            start=begin,
            until=end,
            follow=options.follow,
            isolation=options.isolation,
            on_gap=notes.add,
            **chosen,
        ) as consumer,
    ):
        # What a group commits has been written out.
        is_live = options.follow or options.group is not None or sys.stdout.isatty()
        try:
            records = _past_damage(consumer) if options.skip_damaged else iter(consumer)
            printed = _print(islice(records, options.count), _formatter(options), notes, is_live=is_live)
            if options.group is not None:
                _commit(consumer)
        except CorruptRecordError as error:
            if not options.skip_damaged:
                error.add_note("--skip-damaged continues after it")
            raise
        finally:
            notes.finish()
        if not printed and options.count != 0:
            from seglog.cli.nothing import say_what_there_is

            say_what_there_is(client, options, begin, end)
    return OK


def _commit(consumer: "Consumer") -> None:
    """Commit everything that was printed, including the last record if ``--count`` ended the loop."""
    from seglog.group_consumer import GroupConsumer

    assert isinstance(consumer, GroupConsumer)
    with suppress(GroupError):  # its partitions were revoked, or it has not joined yet
        consumer.commit()


class GapNotes:
    """Reports on stderr which offsets hold no record, each once.

    Offsets that compaction removed are expected: one total at the end. Any other gap gets a line as soon as its end is
    known.
    """

    def __init__(self) -> None:
        self.growing: dict[int, ConsumerGap] = {}
        """By partition: losses that are not printed yet, because the next gap may continue them."""
        self._compacted = 0

    def add(self, gap: "ConsumerGap") -> None:
        """Note a gap. The next one of its partition may continue it."""
        if gap.reason == "compacted":
            self._compacted += gap.end - gap.start
            return
        before = self.growing.get(gap.partition)
        if before is not None and (before.end, before.reason) == (gap.start, gap.reason):
            gap = gap._replace(start=before.start)
        else:
            self.print_gap(gap.partition)
        self.growing[gap.partition] = gap

    def print_gap(self, partition: int) -> None:
        """Print the gap of this partition that has not been printed yet, if there is one."""
        gap = self.growing.pop(partition, None)
        if gap is not None:
            where = f"offsets {gap.start} to {gap.end - 1} of {gap.topic}-{gap.partition}"
            warn(f"warning: {where} hold no record ({gap.reason})")

    def finish(self) -> None:
        """Print what has not been printed yet, after the last record."""
        for partition in list(self.growing):
            self.print_gap(partition)
        if self._compacted:
            warn(f"note: {count_of(self._compacted, 'offset')} without a record (compacted)")


def _past_damage(consumer: "Consumer") -> "Iterator[Record]":
    """The records that can be read; each loss is a warning on stderr."""
    from seglog.core.fetcher import GO_ON

    while True:
        try:
            yield from consumer
        except CorruptRecordError as error:
            if error.partition < 0 or error.next_offset <= consumer.positions()[error.partition]:
                raise  # it is not known where to continue
            warn(f"warning: {error.message.partition(GO_ON)[0]}; skipped")
            consumer.seek({error.partition: error.next_offset})
        else:
            return


def _print(records: "Iterator[Record]", as_bytes: "Formatter", notes: GapNotes, *, is_live: bool) -> int:
    """Print records; how many there were."""
    output, printed = sys.stdout.buffer, 0
    for printed, record in enumerate(records, 1):  # noqa: B007 - the last one is the number of all
        if notes.growing:
            notes.print_gap(record.partition)
        output.write(as_bytes(record))
        if is_live:
            output.flush()
    return printed


# --- Formats ----------------------------------------------------------------------------------------------------------


def _formatter(options: Options) -> "Formatter":
    on_terminal = is_terminal()
    # --json is what every command calls its output for machines.
    if options.json or options.format == "json":
        return json_formatter(on_terminal=on_terminal)
    if options.format == "raw":
        return raw_formatter(on_terminal=on_terminal)
    return text_formatter(
        keys=options.keys or options.key_separator is not None,
        headers=options.headers,
        offsets=options.offsets,
        zone=zone_of(options),
        separator="\t" if options.key_separator is None else options.key_separator,
        null=options.null,
        on_terminal=on_terminal,
    )


def json_formatter(*, on_terminal: bool = False) -> "Formatter":
    """An envelope a line."""
    from seglog.cli.envelope import to_json

    if on_terminal:
        return lambda record: disarmed_json(to_json(record)).encode() + b"\n"
    return lambda record: to_json(record).encode() + b"\n"


def raw_formatter(*, on_terminal: bool = False) -> "Formatter":
    """The value's bytes and nothing else; on a terminal its lines, with what is no text escaped."""

    def as_raw(record: "Record") -> bytes:
        value = record.value or b""
        if not on_terminal:
            return value
        return b"\n".join(b"\t".join(map(_escaped, line.split(b"\t"))) for line in value.split(b"\n"))

    return as_raw


def text_formatter(
    *,
    keys: bool,
    headers: bool,
    offsets: bool,
    zone: tzinfo | None,
    separator: str = "\t",
    null: str = "null",
    on_terminal: bool = False,
) -> "Formatter":
    """Separated: partition:offset, time, headers and key as asked for, then the value; ``null`` where none is.

    On a terminal a record is a line, whatever is in it: what is no text is escaped, tabs and line ends included.
    """
    as_it_is = _escaped if on_terminal else bytes

    def shown(content: bytes | None) -> bytes:
        return null.encode() if content is None else as_it_is(content)

    def as_text(record: "Record") -> bytes:
        parts: list[bytes] = []
        if offsets:
            parts.append(f"{record.partition}:{record.offset}".encode())
            parts.append(format_time(record.timestamp, zone).encode())
        if headers:
            named = (as_it_is(name.encode()) + b"=" + shown(content) for name, content in record.headers)
            parts.append(b",".join(named))
        if keys:
            parts.append(shown(record.key))
        parts.append(shown(record.value))
        return separator.encode().join(parts) + b"\n"

    return as_text


def _escaped(content: bytes) -> bytes:
    return disarmed(content.decode(errors="backslashreplace")).encode()


COMMAND: Final = Command(
    "consume",
    runs=run,
    params=[
        topic(),
        Option(
            ["--from", "start"],
            metavar="OFFSET|TIME",
            show_default="earliest; latest with --follow",
            help="Where to start; also earliest or latest.",
        ),
        until(),
        Option(["--count"], type=COUNT, help="Stop after N records, of all partitions together."),
        flag("--follow", "Wait for new records."),
        partitions(),
        Option(
            ["--on-out-of-range"],
            type=click.Choice(("error", "earliest", "latest")),
            default="error",
            help="Where to continue when the next offset is not in the log, for example because it has expired.",
        ),
        Option(
            ["--group"],
            type=GROUP_NAME,
            help="Read as a member of this consumer group: from what it has committed on, and commit what is printed. "
            "It gets its partitions from the group: not with --partition or --on-out-of-range.",
        ),
        isolation(
            "With read_committed no records of aborted transactions, and none from where the first open one begins."
        ),
        flag("--skip-damaged", "Warn of records that cannot be read, and continue after them."),
        Option(
            ["--format"],
            type=click.Choice(("text", "json", "raw")),
            default="text",
            help="text: a value a line. json: an object a line. raw: values with nothing between them.",
        ),
        flag("--keys", "Print the key before the value, with --format text."),
        flag("--headers", "Print the headers before the value, with --format text."),
        flag("--offsets", "Print partition, offset and time before the value, with --format text."),
        Option(
            ["--key-separator"],
            type=SEPARATOR,
            show_default="a tab",
            help="What is between offsets, headers, key and value, with --format text; implies --keys.",
        ),
        Option(["--null"], metavar="TEXT", default="null", help="What to print for a key or a value that is none."),
        local(),
    ],
    times=PLACES,
    example="seglog consume clicks --from -1h --follow --keys\n"
    "seglog consume clicks --from 2024-07-01 --until 2024-07-02 --format json",
)
