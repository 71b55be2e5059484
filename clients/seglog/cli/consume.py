"""``seglog consume``."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from seglog.cli.arguments import Options
from seglog.cli.common import moment_of, open_client, warn, zone_of
from seglog.cli.exits import OK, UsageError
from seglog.cli.record_formats import Formatter, as_json, as_raw, text_formatter
from seglog.consumer import Consumer
from seglog.fetching import GO_ON, Record
from seglog.formatting import count_of
from seglog.gaps import ConsumerGap
from seglog_protocol.errors import CorruptRecordError, GroupError


def run(options: Options) -> int:
    """Print records until the end, ``--until``, ``--count`` or an interrupt."""
    start = None if options.start is None else moment_of(options.start, options)
    until = None if options.until is None else moment_of(options.until, options)
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
            start=start,
            until=until,
            follow=options.follow,
            isolation=options.isolation,
            on_gap=notes.met,
            **chosen,
        ) as consumer,
    ):
        # What a group commits has been written out.
        is_live = options.follow or options.group is not None or sys.stdout.isatty()
        try:
            records = _past_damage(consumer) if options.skip_damaged else iter(consumer)
            _print(islice(records, options.count), _formatter(options), notes, is_live=is_live)
            if options.group is not None:
                _commit(consumer)
        except CorruptRecordError as error:
            if not options.skip_damaged:
                error.add_note("--skip-damaged continues after it")
            raise
        finally:
            notes.finish()
    return OK


def _commit(consumer: Consumer) -> None:
    """Commit all that was written out, the last record, too, where ``--count`` has ended the loop."""
    from seglog.group_consumer import GroupConsumer  # noqa: PLC0415 - seldom asked

    assert isinstance(consumer, GroupConsumer)
    with suppress(GroupError):  # others have its partitions meanwhile, or it has not joined yet
        consumer.commit()


class GapNotes:
    """Says on stderr which offsets hold no record, each once.

    Compaction is configured: one total, at the end. Any other reason is unexpected, and gets a line as soon as its end
    is known.
    """

    def __init__(self) -> None:
        self.growing: dict[int, ConsumerGap] = {}
        """By partition: losses that are not printed yet, because the next gap may continue them."""
        self._compacted = 0

    def met(self, gap: ConsumerGap) -> None:
        """A gap was met; the next one of its partition may be its neighbour."""
        if gap.reason == "compacted":
            self._compacted += gap.end - gap.start
            return
        before = self.growing.get(gap.partition)
        if before is not None and (before.end, before.reason) == (gap.start, gap.reason):
            gap = gap._replace(start=before.start)
        else:
            self.tell(gap.partition)
        self.growing[gap.partition] = gap

    def tell(self, partition: int) -> None:
        """The loss in this partition, if there is one, goes no further."""
        gap = self.growing.pop(partition, None)
        if gap is not None:
            where = f"offsets {gap.start} to {gap.end - 1} of {gap.topic}-{gap.partition}"
            warn(f"warning: {where} hold no record ({gap.reason})")

    def finish(self) -> None:
        """Nothing more will be read."""
        for partition in list(self.growing):
            self.tell(partition)
        if self._compacted:
            warn(f"note: {count_of(self._compacted, 'offset')} without a record (compacted)")


def _past_damage(consumer: Consumer) -> Iterator[Record]:
    """The records that can be read; each loss is a warning on stderr."""
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


def _print(records: Iterator[Record], as_bytes: Formatter, notes: GapNotes, *, is_live: bool) -> None:
    output = sys.stdout.buffer
    for record in records:
        if notes.growing:
            notes.tell(record.partition)
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
