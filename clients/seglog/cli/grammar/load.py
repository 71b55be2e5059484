"""``seglog load produce | consume | roundtrip``."""

from typing import Any, Final

import click

from seglog.cli.commands import PLACES, Command, Group, Option
from seglog.cli.grammar.common import ACKS, ack, compression, local, topic
from seglog.cli.option_types import AMOUNT, COUNT, POSITIVE, SECONDS, SIZE, SOME_SECONDS

_ACK: Final = "What is asked for: os survives a crash of the broker, disk a loss of power."


def _sending(acks: tuple[str, ...], rate: str) -> list[click.Parameter]:
    """What verbs that append take."""
    return [
        topic("Created if missing; a new one, load-..., if left out.", required=False),
        ack(_ACK, acks),
        Option(
            ["--rate"],
            type=AMOUNT,
            metavar="RECORDS/S",
            show_default=rate,
            help="Target over all connections; 0 is as fast as answers come. Latency counts from when a record was "
            "due, so that a stall shows in every record that waited. Where the size of a batch is not given, a batch "
            "holds what falls due in 5 ms.",
        ),
        Option(["--batch-records"], type=POSITIVE, metavar="N", help="Records a batch, whatever their size."),
        Option(["--batch-bytes"], type=SIZE, metavar="BYTES", show_default="64KiB", help="Bytes a batch."),
    ]


def _measured(pipeline: str, warmup: str) -> list[click.Parameter]:
    """What all verbs take."""
    return [
        Option(["--record-size"], type=SIZE, default="100", metavar="BYTES", help="Bytes of the value of a record."),
        compression("How batches are compressed."),
        Option(
            ["--partitions"],
            type=POSITIVE,
            metavar="N",
            show_default="1",
            help="Partitions of a topic that is created.",
        ),
        Option(["--keep"], is_flag=True, help="Do not delete a topic that was created."),
        Option(["--connections"], type=POSITIVE, default="1", metavar="N", help="Number of connections."),
        Option(
            ["--pipeline"],
            type=POSITIVE,
            metavar="N",
            show_default=pipeline,
            help="Requests in flight on a connection.",
        ),
        Option(
            ["--duration"],
            type=SOME_SECONDS,
            metavar="SECONDS",
            show_default="10; 300 with --count",
            help="Stop after this time.",
        ),
        Option(
            ["--count"],
            type=POSITIVE,
            metavar="RECORDS",
            show_default="10,000,000; no limit with --duration",
            help="Stop after so many records.",
        ),
        Option(
            ["--warmup"],
            type=SECONDS,
            metavar="SECONDS",
            show_default=warmup,
            help="Time before the measurement begins.",
        ),
        Option(["--seed"], type=COUNT, default="0", metavar="N", help="Seed of the contents of records."),
    ]


def _verb(name: str, help_text: str, *params: click.Parameter, **attributes: Any) -> Command:
    return Command(name, runs="load", sets={"verb": name}, help=help_text, params=params, **attributes)


_WARMUP: Final = "1; 0 with --count alone"

COMMAND: Final = Group(
    "load",
    [
        _verb(
            "produce",
            "Append batches: throughput, and the latency of acknowledgements.",
            *_sending(ACKS, "0"),
            *_measured("5", _WARMUP),
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
            Option(["--follow"], is_flag=True, help="Wait for new records."),
            local("Read"),
            Option(
                ["--batch-bytes"],
                type=SIZE,
                metavar="BYTES",
                show_default="1MiB",
                help="Most bytes that a fetch brings of a partition.",
            ),
            *_measured("1", "0"),
            times=PLACES,
            example="seglog load consume clicks --duration 60",
        ),
        _verb(
            "roundtrip",
            "Append and fetch in one process: the latency from end to end.",
            *_sending(("os", "disk"), "1000"),
            *_measured("5", _WARMUP),
            example="seglog load roundtrip --rate 500 --record-size 1kB",
        ),
    ],
    help="Put load on a broker, and measure throughput and latency.",
)
