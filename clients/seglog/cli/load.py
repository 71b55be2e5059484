"""``seglog load``: load on purpose, and how the broker bears it."""

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from seglog.cli import INTERRUPTED
from seglog.cli.arguments import Options
from seglog.cli.commands import PLACES, Command, Group, Option, flag
from seglog.cli.common import moment_of, print_json, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.option_types import AMOUNT, COUNT, POSITIVE, SIZE, SOME_SECONDS
from seglog.cli.parameters import ACKS, ack, compression, local, topic
from seglog.cli.tables import print_table
from seglog.cli.terminal import print_line
from seglog_protocol.extras import missing

if TYPE_CHECKING:
    from seglog.load.plan import Plan
    from seglog.load.report import Report
    from seglog.trio import Client

_REQUEST_SECONDS = 60.0  # longer than a fetch waits for records


def run(options: Options) -> int:
    """Run one verb and print its report. 1 when anything failed, 130 when interrupted, with what was measured."""
    if (error := missing("seglog load", "load")) is not None:
        warn(str(error))
        return FAILED
    import trio  # only now is it known to be there

    running = import_module("seglog.load.running")
    try:
        plan = _plan(options)
        _client(options)  # a wrong address is an error before anything is begun
    except ValueError as error:
        raise UsageError(str(error)) from error
    report: Report = trio.run(running.run, plan, lambda: _client(options))
    if options.json:
        print_json(report.to_json())
    else:
        _print(report)
    if report.ended_by == "interrupt":
        return INTERRUPTED
    return FAILED if report.has_failed else OK


def _plan(options: Options) -> "Plan":
    from seglog.load.plan import Plan, make_plan

    names = {field.name for field in fields(Plan)}
    values = {name: value for name, value in options.values.items() if name in names}
    verb = values.pop("verb")
    if values.get("start") is not None:
        values["start"] = moment_of(values["start"], options)
    return make_plan(verb, **values)


def _client(options: Options) -> "Client":
    from seglog.trio import connect

    return connect(
        options.server,
        connect_timeout=options.connect_timeout,
        request_timeout=_REQUEST_SECONDS,
        client_id="seglog-load",
        **options.security,
    )


def _print(report: "Report") -> None:
    print_line(report.heading())
    print_line()
    for titles, rows in (report.totals(), report.latency_rows()):
        if rows:
            print_table(titles, rows)
            print_line()
    for remark in report.remarks():
        print_line(remark)


_ACK: Final = "What is asked for: os survives a crash of the broker, disk a loss of power."


def _sending(acks: tuple[str, ...], rate: str) -> list[click.Parameter]:
    """The options of commands that append."""
    return [
        topic("Created if missing; a new one, load-..., if left out.", required=False),
        ack(_ACK, acks),
        Option(
            ["--rate"],
            type=AMOUNT,
            show_default=rate,
            help="Target over all connections; 0 is as fast as answers come. Latency counts from when a record was "
            "due, so that a stall shows in every record that waited. Where the size of a batch is not given, a batch "
            "holds what falls due in 5 ms.",
        ),
        Option(["--batch-records"], type=POSITIVE, help="Records a batch, whatever their size."),
        Option(["--batch-bytes"], type=SIZE, show_default="64KiB", help="Bytes a batch."),
    ]


def _measured(pipeline: str) -> list[click.Parameter]:
    """The options of all commands."""
    return [
        Option(["--record-size"], type=SIZE, default="100", help="Bytes of the value of a record."),
        compression("How batches are compressed."),
        Option(["--partitions"], type=POSITIVE, show_default="1", help="Partitions of a topic that is created."),
        flag("--keep", "Do not delete a topic that was created."),
        Option(["--connections"], type=POSITIVE, default="1", help="Number of connections."),
        Option(["--pipeline"], type=POSITIVE, show_default=pipeline, help="Requests in flight on a connection."),
        Option(["--duration"], type=SOME_SECONDS, show_default="10; 300 with --count", help="Stop after this time."),
        Option(
            ["--count"],
            type=POSITIVE,
            metavar="RECORDS",
            show_default="10,000,000; no limit with --duration",
            help="Stop after so many records.",
        ),
        Option(["--seed"], type=COUNT, default="0", help="Seed of the contents of records."),
    ]


def _verb(name: str, help_text: str, *params: click.Parameter, **attributes: Any) -> Command:
    return Command(name, runs=run, sets={"verb": name}, help=help_text, params=params, **attributes)


COMMAND: Final = Group(
    "load",
    [
        _verb(
            "produce",
            "Append batches: throughput, and the latency of acknowledgements.",
            *_sending(ACKS, "0"),
            *_measured("5"),
            example="seglog load produce --rate 10000 --duration 60",
        ),
        _verb(
            "consume",
            "Fetch batches: throughput, and the latency of fetches.",
            topic("What to read; a new topic, filled with 1,000,000 records, if left out.", required=False),
            Option(
                ["--from", "start"],
                metavar="OFFSET|TIME",
                show_default="earliest; latest with --follow",
                help="Where to start; also earliest or latest.",
            ),
            flag("--follow", "Wait for new records."),
            local("Read"),
            Option(
                ["--batch-bytes"], type=SIZE, show_default="1MiB", help="Most bytes that a fetch brings of a partition."
            ),
            *_measured("1"),
            times=PLACES,
            example="seglog load consume clicks --duration 60",
        ),
        _verb(
            "roundtrip",
            "Append and fetch in one process: the latency from end to end.",
            *_sending(("os", "disk"), "1000"),
            *_measured("5"),
            example="seglog load roundtrip --rate 500 --record-size 1kB",
        ),
    ],
)
