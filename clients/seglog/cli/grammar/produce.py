"""``seglog produce``."""

from typing import Final

import click

from seglog.cli.commands import Command, Option
from seglog.cli.grammar.common import ack, compression, topic
from seglog.cli.option_types import COUNT, MILLISECONDS, PAIR, SIZE, SOME_SECONDS

COMMAND: Final = Command(
    "produce",
    runs="produce",
    help="Send the lines of a file or of standard input as records.",
    params=[
        topic(),
        click.Argument(["file"], default="-", type=click.Path(), help="What to send; - is standard input."),
        Option(
            ["--format"],
            type=click.Choice(("text", "json", "raw")),
            default="text",
            help="text: each line is a record. json: the same, and each line must be JSON. raw: the whole input is "
            "one record.",
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
        Option(["--skip-bad"], is_flag=True, help="Count bad lines instead of stopping at the first."),
        Option(
            ["--partition"],
            type=COUNT,
            metavar="N",
            show_default="where the key belongs",
            help="Send all records to this partition.",
        ),
        Option(
            ["--header"],
            type=PAIR,
            multiple=True,
            metavar="KEY=VALUE",
            help="A header for every record; repeatable.",
        ),
        compression("How batches are compressed."),
        ack(
            "When a record counts as sent. none: at once. os: when it survives a crash of the broker. disk: when it "
            "survives a loss of power."
        ),
        Option(
            ["--linger-ms"],
            type=MILLISECONDS,
            default="5",
            metavar="MS",
            help="How long a batch may wait to fill, in milliseconds.",
        ),
        Option(
            ["--batch-bytes"], type=SIZE, default="64KiB", metavar="BYTES", help="The size at which a batch is sent."
        ),
        Option(
            ["--delivery-timeout"],
            type=SOME_SECONDS,
            default="120",
            metavar="SECONDS",
            help="How long a record may take to be acknowledged, attempts to reconnect included.",
        ),
    ],
    example="seglog produce clicks clicks.jsonl --format json --key-field user\n"
    "tail -f access.log | seglog produce access --ack os",
)
