"""``seglog consume``."""

import sys
from collections.abc import Iterator
from itertools import islice

from seglog.cli.arguments import Options
from seglog.cli.common import moment_of, open_client, warn, zone_of
from seglog.cli.exits import OK
from seglog.cli.record_formats import Formatter, as_json, as_raw, text_formatter
from seglog.consumer import Consumer
from seglog.fetching import Record
from seglog.gaps import ConsumerGap


def run(options: Options) -> int:
    """Print records until the end, ``--until``, ``--count`` or an interrupt."""
    start = None if options.start is None else moment_of(options.start, options)
    until = None if options.until is None else moment_of(options.until, options)
    with (
        open_client(options) as client,
        client.consumer(
            options.topic,
            partitions=options.partition,
            start=start,
            until=until,
            follow=options.follow,
            on_gap=_tell_loss,
        ) as consumer,
    ):
        _print(_limited(consumer, options.count), _formatter(options), is_live=options.follow or sys.stdout.isatty())
        compacted = sum(gap.end - gap.start for gap in consumer.gaps if gap.reason == "compacted")
        if compacted and sys.stderr.isatty():
            warn(f"note: {compacted:,} offsets hold no record any more (compacted)")
    return OK


def _limited(consumer: Consumer, count: int | None) -> Iterator[Record]:
    return iter(consumer) if count is None else islice(iter(consumer), count)


def _print(records: Iterator[Record], as_bytes: Formatter, *, is_live: bool) -> None:
    output = sys.stdout.buffer
    for record in records:
        output.write(as_bytes(record))
        if is_live:
            output.flush()


def _formatter(options: Options) -> Formatter:
    # --json is what every command calls its output for machines.
    if options.json or options.format == "json":
        return as_json
    if options.format == "raw":
        return as_raw
    return text_formatter(keys=options.keys, headers=options.headers, offsets=options.offsets, zone=zone_of(options))


def _tell_loss(gap: ConsumerGap) -> None:
    """Compaction is the topic's own wish; every other reason is news."""
    if gap.reason != "compacted":
        where = f"offsets {gap.start} to {gap.end - 1} of {gap.topic}-{gap.partition}"
        warn(f"warning: {where} hold no record ({gap.reason})")
