"""``seglog explain seek | delivery | segments | config``."""

from collections.abc import Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import TIMES, Choice, Group, Option, flag
from seglog.cli.common import answer, moment_of, print_config, print_json, warn, zone_of
from seglog.cli.exits import OK, REFUSED, UsageError
from seglog.cli.option_types import COUNT, GROUP_NAME
from seglog.cli.parameters import client_command, completed, local, topic
from seglog.cli.showing import picture_options, show, wants_picture, width_of_output
from seglog.cli.tables import labelled
from seglog.cli.terminal import print_line
from seglog.core.errors import count_of
from seglog.core.moments import AtOffset, AtTime, Edge, format_time
from seglog_protocol.errors import PartitionOfflineError
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.core.explaining import PartitionExplanation
    from seglog_protocol.messages import ExplainedDelivery, ExplainedLookup, ExplainReply


def _seek(client: "Client", options: Options) -> int:
    moment = AtOffset(options.offset) if options.offset is not None else moment_of(options.timestamp, options)
    if isinstance(moment, Edge) or (options.offset is None and isinstance(moment, AtOffset)):
        raise UsageError(
            f"--timestamp: must be a time, not {options.timestamp!r}; for example -1h, 2019-01-01 or @1546300800000"
        )

    def ask() -> "ExplainReply":
        return client.explain.seek(options.topic, options.partition, moment)

    if wants_picture(options):
        from seglog.cli.pictures.explained import seek_picture

        return show(options, lambda _: [seek_picture(ask(), moment, zone_of(options))])
    reply = ask()
    return answer(options, reply.to_wire(), *seek_lines(reply, moment, zone_of(options)))


def seek_lines(
    reply: "ExplainReply", moment: AtOffset | AtTime, zone: tzinfo | None, *, width: int | None = None
) -> Iterator[str]:
    """The trace of a seek to ``moment``, with times of ``zone``, in lines of at most ``width`` columns."""
    wanted = (
        f"offset {moment.offset:,}" if isinstance(moment, AtOffset) else f"time {format_time(moment.timestamp, zone)}"
    )
    yield f"{reply.topic}-{reply.partition}, {wanted}, in {count_of(reply.segments, 'segment')}"
    yield from labelled(_steps(reply, zone), label_width=13, width=width)


def _steps(reply: "ExplainReply", zone: tzinfo | None) -> Iterator[tuple[str, str]]:
    """What the seek did, step by step, each with its label."""
    yield "segment", f"{'none' if reply.segment is None else f'{reply.segment:020d}'}: {reply.why}"
    if reply.rebuilt_indexes:
        yield "index", "was missing or did not lead to a batch, and was rebuilt first"
    for lookup in reply.lookups:
        yield _lookup(lookup, zone)
    if reply.position is None:
        return
    yield (
        "scan",
        (
            f"from position {reply.scan_start:,}: {count_of(reply.scanned_batches, 'batch header')} over "
            f"{count_of(reply.scanned_bytes, 'byte')}, {count_of(reply.read_bytes, 'byte')} of the log read"
        ),
    )
    yield "batch", f"offsets {reply.base_offset:,} to {reply.last_offset:,} at position {reply.position:,}"
    if reply.record_offset is not None and reply.record_timestamp is not None:
        yield "record", f"offset {reply.record_offset:,}, {format_time(reply.record_timestamp, zone)}"
    yield "files", ", ".join(reply.files)


def _lookup(lookup: "ExplainedLookup", zone: tzinfo | None) -> tuple[str, str]:
    label = f"{lookup.index} index"
    probes = f"{count_of(lookup.probes, 'probe')} of {count_of(lookup.entries, 'entry', many='entries')}"
    if not lookup.entries:
        return label, "is empty, so from the segment's beginning"
    if lookup.key is None or lookup.value is None:
        return label, f"{probes}: every entry lies above, so from the segment's beginning"
    if lookup.index == "time":
        return label, f"{probes}: nothing up to offset {lookup.value:,} is after {format_time(lookup.key, zone)}"
    return label, f"{probes}: offset {lookup.key:,} ends the batch at position {lookup.value:,}"


def _delivery(client: "Client", options: Options) -> int:
    reply = client.explain.delivery(options.topic, options.partition, options.group, options.offset)
    return answer(options, reply.to_wire(), *delivery_lines(reply, options.group, options.offset, zone_of(options)))


def delivery_lines(reply: "ExplainReply", group: str, offset: int | None, zone: tzinfo | None) -> Iterator[str]:
    """A partition, and the record at ``offset`` if there is one, as a share group has it."""
    of_record = "" if offset is None else f", offset {offset:,}"
    yield f"{reply.topic}-{reply.partition}{of_record}, as share group {printable(group)} has it"
    assert reply.delivery is not None
    yield from labelled(_delivered(reply.delivery, reply.why, zone), label_width=13)


def _delivered(told: "ExplainedDelivery", why: str, zone: tzinfo | None) -> Iterator[tuple[str, str]]:
    if why:
        yield "record", why
    start = "its members have not fetched yet" if told.start_offset is None else f"from offset {told.start_offset:,} on"
    letters = f", {count_of(told.archiving, 'dead letter')} to be written" if told.archiving else ""
    yield "records", f"{start}: {told.acquired:,} in flight, {told.waiting:,} waiting{letters}"
    for each in told.holders:
        until = format_time(each.until_ms, zone)
        yield (
            "member",
            f"{each.member_id}: {count_of(each.records, 'record')} from {each.first_offset:,} on, until {until}",
        )
    for advice in told.warnings:
        yield "warning", advice.found
        yield "->", advice.remedy


def _segments(client: "Client", options: Options) -> int:
    from seglog.cli.segment_table import lines_of

    if wants_picture(options):
        from seglog.cli.pictures.explained import segments_picture

        return show(
            options,
            lambda rows: [
                segments_picture(partition, zone_of(options), rows=rows)
                for partition in _explained_segments(client, options)[0]
            ],
        )
    explained, code = _explained_segments(client, options)
    if options.json:
        print_json([partition.to_wire() for partition in explained])
        return code
    width = width_of_output()
    for number, partition in enumerate(explained):
        if number:
            print_line()
        for line in lines_of(partition, zone_of(options), width):
            print_line(line)
    return code


def _explained_segments(client: "Client", options: Options) -> "tuple[list[PartitionExplanation], int]":
    """The partitions that were asked for, without those that are offline, and the exit code."""
    partitions = [options.partition]
    if options.partition is None:
        partitions = list(range(client.describe_topic(options.topic).partitions))
    explained, code = [], OK
    for number in partitions:
        try:
            explained.append(client.explain.segments(options.topic, number, drops=options.drops))
        except PartitionOfflineError as error:
            if len(partitions) == 1:
                raise
            warn(error.message)  # and continue with the others
            code = REFUSED
    return explained, code


def _config(client: "Client", options: Options) -> int:
    config = client.explain.config(options.topic)
    if options.json:
        print_json({key: entry.to_wire() for key, entry in config.items()})
    else:
        print_config(config)
    return OK


COMMAND: Final = Group(
    "explain",
    [
        client_command(
            "seek",
            _seek,
            "Show how a fetch finds an offset or a time: the trace of a real seek.",
            topic(),
            click.Argument(["partition"], type=COUNT, help="Number of the partition, from 0."),
            Option(["--offset"], type=COUNT, help="The record with this offset."),
            Option(["--timestamp"], metavar="TIME", help="The first record at or after this time."),
            local(),
            *picture_options(),
            choices=[Choice(("offset", "timestamp"), required=True)],
            times=TIMES,
            example="seglog explain seek clicks 0 --timestamp -1h",
        ),
        client_command(
            "delivery",
            _delivery,
            "Show who of a share group has records of a partition, and what became of one of them.",
            topic(),
            click.Argument(["partition"], type=COUNT, help="Number of the partition, from 0."),
            Option(
                ["--group"], required=True, type=GROUP_NAME, help="The share group.", shell_complete=completed("groups")
            ),
            Option(["--offset"], type=COUNT, help="The record with this offset."),
            local(),
            example="seglog explain delivery jobs 0 --group workers --offset 1200",
        ),
        client_command(
            "segments",
            _segments,
            "Show why each segment is kept, and from when to when it can go.",
            topic(),
            click.Argument(["partition"], type=COUNT, required=False, help="Number of the partition; all if left out."),
            flag("--drops", "Show what compaction would drop, however much must be read to know it."),
            *picture_options(),
            local("Show"),
        ),
        client_command("config", _config, "Show every setting of a topic, and where its value comes from.", topic()),
    ],
)
