"""``seglog archive``: a topic as a table, without Spark; its options are those of ``seglog spark archive`` as well."""

from typing import Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Command, Option, flag
from seglog.cli.exits import InputError
from seglog.cli.option_types import MEBIBYTES, SOME_SECONDS
from seglog.cli.parameters import compression, topic_option
from seglog_protocol.extras import missing


def options() -> list[click.Parameter]:
    """The options of both commands."""
    return [
        topic_option("--topic", "The topic.", required=True),
        Option(
            ["--out"],
            type=click.Path(),
            required=True,
            metavar="DIR|URL",
            help="The archive, made or continued: a folder, or s3://BUCKET/PATH, gs:// or az://.",
        ),
        Option(
            ["--format"],
            type=click.Choice(("parquet", "delta", "iceberg")),
            default="parquet",
            help="Parquet files and a manifest, or a table of Delta Lake or Apache Iceberg.",
        ),
        Option(
            ["--catalog"],
            metavar="NAME|URI",
            show_default="_catalog.db in DIR",
            help="Of an Iceberg table: the address of a REST catalog or of a database, or a name that pyiceberg knows.",
        ),
        Option(
            ["--partition-by"],
            type=click.Choice(("year", "month", "day", "hour", "date")),
            help="Lay files out by the time of their records in UTC, as topic=/month=/partition=; date is day, too.",
        ),
        Option(
            ["--value"],
            type=click.Choice(("bytes", "string", "json", "avro", "protobuf")),
            show_default="bytes",
            help="What values are. Records that do not fit go to files in _rejected, with the reason.",
        ),
        Option(
            ["--schema"],
            metavar="TEXT|FILE|infer",
            help="Of JSON in Spark's words, or from a sample; of Avro, Protobuf. Files are .ddl, .avsc, .proto, .desc.",
        ),
        Option(["--message"], metavar="NAME", show_default="the first", help="The message of Protobuf: shop.Order."),
        Option(["--registry"], metavar="URL", help="Where Avro's and Protobuf's schemas are, as Confluent's."),
        Option(["--target-file-mb"], type=MEBIBYTES, default="128", help="MiB of the log that make a file."),
        compression("How files are compressed.", "zstd"),
        flag("--durable-only", "Only records that survive a loss of power."),
        flag("--follow", "Keep archiving new records until an interrupt (Ctrl-C, SIGTERM), through outages."),
        Option(["--trigger"], type=SOME_SECONDS, show_default="60", help="With --follow, how often it makes files."),
        flag("--accept-loss", "Continue without records that are gone, and note what is missing."),
        Option(["--group"], metavar="GROUP", help="Commit how far it is to this group, for `seglog group describe`."),
    ]


def run(options: Options) -> int:
    """Run the job, whose module needs packages that may be missing."""
    if error := missing("seglog archive", "archive"):
        raise InputError(str(error))
    from seglog_spark.jobs import archiving
    from seglog_spark.jobs.failures import as_command_errors
    from seglog_spark.jobs.here import Here

    with as_command_errors():
        return archiving.run(options, Here)


COMMAND: Final = Command(
    "archive",
    runs=run,
    sets={"job": "archive"},
    help="It needs neither Spark nor Java: pip install 'seglog[archive]'. `seglog spark archive` does it on a cluster.",
    params=options(),
    example="seglog archive --topic clicks --out /data/clicks --partition-by month",
)
