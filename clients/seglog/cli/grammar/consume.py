"""``seglog consume``."""

from typing import Final

import click

from seglog.cli.commands import PLACES, Command, Option
from seglog.cli.grammar.common import isolation, local, partitions, topic, until
from seglog.cli.option_types import COUNT, GROUP_NAME

COMMAND: Final = Command(
    "consume",
    runs="consume",
    help="Print records, from an offset or a time to the end of the log.",
    params=[
        topic(),
        Option(
            ["--from", "start"],
            metavar="OFFSET|TIME",
            show_default="earliest; latest with --follow",
            help="Where to start; also earliest or latest.",
        ),
        until(),
        Option(["--count"], type=COUNT, metavar="N", help="Stop after N records, of all partitions together."),
        Option(["--follow"], is_flag=True, help="Wait for new records."),
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
            metavar="NAME",
            help="Read as a member of this consumer group: from what it has committed on, and commit what is printed. "
            "It gets its partitions from the group: not with --partition or --on-out-of-range.",
        ),
        isolation(
            "With read_committed no records of aborted transactions, and none from where the first open one begins."
        ),
        Option(["--skip-damaged"], is_flag=True, help="Warn of records that cannot be read, and continue after them."),
        Option(
            ["--format"],
            type=click.Choice(("text", "json", "raw")),
            default="text",
            help="text: a value a line. json: an object a line. raw: values with nothing between them.",
        ),
        Option(["--keys"], is_flag=True, help="Print the key before the value, with --format text."),
        Option(["--headers"], is_flag=True, help="Print the headers before the value, with --format text."),
        Option(
            ["--offsets"],
            is_flag=True,
            help="Print partition, offset and time before the value, with --format text.",
        ),
        local(),
    ],
    times=PLACES,
    example="seglog consume clicks --from -1h --follow --keys\n"
    "seglog consume clicks --from 2024-07-01 --until 2024-07-02 --format json",
)
