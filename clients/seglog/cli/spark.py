"""``seglog spark archive | replay | compact | report``; the jobs themselves are in ``seglog_spark.jobs``."""

from importlib import import_module
from typing import Any, Final

import click

from seglog.cli import archive
from seglog.cli.arguments import Options
from seglog.cli.commands import PLACES, Choice, Command, Group, Option, flag
from seglog.cli.option_types import COUNT, PAIR, POSITIVE, Checked
from seglog.cli.parameters import ack, compression, local, topic_option, until

PRESERVED: Final = ("partition", "timestamp", "key")
PERIODS: Final = ("hour", "day", "month", "year")

_NEEDS: Final = (
    "It runs on Spark, here or on a cluster: pip install 'seglog[spark]', with a Java on the machine, or "
    "'seglog[spark-java]'. spark-submit takes the same options, see docs/SPARK.md."
)
_INPUT: Final = Choice(("archive", "topic"), required=True)


def run(options: Options) -> int:
    """Run a job, whose module needs packages that may be missing."""
    from seglog_spark.jobs.failures import as_command_errors
    from seglog_spark.jobs.running import require_packages

    with as_command_errors():
        require_packages()
        code: int = import_module(f"seglog_spark.jobs.{options.job}").run(options)
    return code


def _words(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in known:
            raise ValueError(f"{word!r} is not one of {', '.join(known)}")
    if len(set(words)) < len(words):
        raise ValueError(f"{text!r} names something twice")
    return words


def _groups(text: str) -> tuple[str, ...]:
    words = _words(text, ("partition", *PERIODS))
    if len(set(words) & set(PERIODS)) > 1:
        raise ValueError(f"{text!r} names two periods; one of {', '.join(PERIODS)} is enough")
    return words


def _input() -> list[click.Parameter]:
    return [
        Option(["--in", "archive"], type=click.Path(), metavar="DIR", help="Read an archive: this or --topic."),
        topic_option("--topic", "Read a topic: this or --in."),
        flag("--accept-loss", "Continue without records of the topic that are gone."),
    ]


def _range() -> list[click.Parameter]:
    return [
        Option(
            ["--from", "start"], metavar="OFFSET|TIME", show_default="earliest", help="Each partition starts there."
        ),
        until(),
        local("Read"),
    ]


def _write() -> list[click.Parameter]:
    return [
        Option(
            ["--job-id"],
            metavar="ID",
            help="Write effectively once: run again under the same ID, it writes what is missing, and nothing if it "
            "had finished. The first record of each batch gets a header seglog.spark. Without it every run writes "
            "everything.",
        ),
        ack("When a record counts as written to a topic: os survives a crash of the broker, disk a loss of power."),
        compression("How batches or files are compressed.", "zstd"),
    ]


def _spark() -> list[click.Parameter]:
    return [
        Option(["--master"], metavar="URL", show_default="local[*], or as spark-submit says", help="Spark's master."),
        Option(["--conf"], type=PAIR, multiple=True, help="A setting of Spark; repeatable."),
        flag("--spark-log", "Show Spark's own log on stderr."),
    ]


def _job(name: str, help_text: str, *params: click.Parameter, **attributes: Any) -> Command:
    return Command(
        name, runs=run, sets={"job": name}, help=f"{help_text}\n\n{_NEEDS}", params=[*params, *_spark()], **attributes
    )


COMMAND: Final = Group(
    "spark",
    [
        _job(
            "archive",
            "Keep a topic as Parquet, continuing where the last run ended.",
            *archive.options(),
            example="seglog spark archive --topic clicks --out /data/clicks --follow --trigger 5m",
        ),
        _job(
            "replay",
            "Append an archive, or a range of a topic, to a topic.",
            *_input(),
            topic_option(
                "--to-topic",
                "Where to append. Created if missing, with as many partitions and without retention.",
                required=True,
            ),
            *_range(),
            Option(
                ["--preserve"],
                type=Checked("LIST", lambda text: () if text == "none" else _words(text, PRESERVED)),
                default=",".join(PRESERVED),
                help="What a record keeps besides value and headers, or `none`. Without partition, its key decides "
                "where it goes; without timestamp, it gets the time of writing.",
            ),
            Option(
                ["--rate"],
                type=POSITIVE,
                metavar="RECORDS/S",
                show_default="no limit",
                help="At most so many records a second, over all partitions.",
            ),
            *_write(),
            choices=[_INPUT],
            times=PLACES,
            example="seglog spark replay --in /data/clicks --to-topic clicks-2 --from 2024-07-01",
        ),
        _job(
            "compact",
            "Keep the latest record of each key, as Parquet or in a topic.",
            *_input(),
            Option(
                ["--out"],
                type=click.Path(),
                metavar="DIR",
                help="Write files as archive does, which replay --in reads too: this or --to-topic.",
            ),
            topic_option("--to-topic", "Write to a topic, created if missing, with as many partitions: this or --out."),
            Option(
                ["--null-keys"],
                type=click.Choice(("keep", "drop")),
                default="keep",
                help="What happens to records without a key.",
            ),
            flag("--delete-tombstones", "Leave out keys whose last value is null."),
            Option(
                ["--before-offset"],
                type=COUNT,
                help="As it was then: ignore records from offset N on, in every partition.",
            ),
            flag("--overwrite", "Replace an earlier compaction in DIR, if there is one."),
            *_write(),
            choices=[_INPUT, Choice(("out", "to_topic"), required=True)],
            example="seglog spark compact --topic users --to-topic users-latest",
        ),
        _job(
            "report",
            "Count records, bytes, keys and time per partition and hour.",
            *_input(),
            *_range(),
            Option(
                ["--by"],
                type=Checked("LIST", _groups),
                default="partition,hour",
                help="What a row is about: partition and one of hour, day, month, year, or one of them alone.",
            ),
            Option(
                ["--format"],
                type=click.Choice(("table", "json", "parquet")),
                show_default="table; json with --json",
                help="How rows are written.",
            ),
            Option(
                ["--out"],
                type=click.Path(),
                metavar="FILE",
                show_default="standard output; not with parquet",
                help="Where rows are written.",
            ),
            choices=[_INPUT],
            times=PLACES,
            example="seglog spark report --topic clicks --by day --out clicks.txt",
        ),
    ],
)
