"""What can be typed behind ``seglog spark``; the jobs themselves are in ``seglog_spark.jobs``."""

import argparse
from typing import Any, Final

from seglog.cli import checks

PRESERVED: Final = ("partition", "timestamp", "key")
PERIODS: Final = ("hour", "day", "month", "year")

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_SPARK: Final = (
    "It runs on Spark, here or on a cluster: `pip install 'seglog[spark]'`, with a Java on the machine, or "
    "`seglog[spark-java]`. The same flags are taken by spark-submit, see docs/SPARK.md."
)


def add_spark_commands(commands: Any, command: Any) -> None:
    """The grammar of all jobs; ``command`` adds one of the commands to ``commands``."""
    archive = command(
        commands, "archive", "spark", f"Keep a topic as Parquet, and go on where the last run ended. {_SPARK}"
    )
    archive.set_defaults(job="archive")
    archive.add_argument("--topic", required=True)
    archive.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="the archive: one folder a partition, and a manifest; made if missing, and gone on with if it is there",
    )
    archive.add_argument(
        "--target-file-mb", type=checks.mebibytes, default=128, metavar="MB", help="bytes of the log that make a file"
    )
    archive.add_argument("--compression", choices=_CODECS, default="zstd", help="of the files")
    archive.add_argument("--durable-only", action="store_true", help="only what survives a power cut of the broker")
    archive.add_argument(
        "--partition-by",
        choices=("date",),
        help="lay files out as topic=/date=/partition=, by the UTC date of their records; an archive stays as it began",
    )
    archive.add_argument(
        "--follow",
        action="store_true",
        help="keep archiving what arrives, until an interrupt (Ctrl-C, SIGTERM); that gives up the round under way, "
        "which the next run finishes",
    )
    archive.add_argument(
        "--trigger",
        type=checks.some_seconds,
        metavar="SECONDS",
        help="with --follow, how often to archive what has come (default 60): each time makes a file or more of every "
        "partition that has something new",
    )
    archive.add_argument(
        "--accept-loss", action="store_true", help="go on without records that are gone, and note what is missing"
    )

    replay = command(commands, "replay", "spark", f"Append an archive, or a range of a topic, to a topic. {_SPARK}")
    replay.set_defaults(job="replay")
    _add_input(replay)
    replay.add_argument(
        "--to-topic", required=True, metavar="TOPIC", help="made if missing, with as many partitions, and kept for ever"
    )
    _add_range(replay)
    replay.add_argument(
        "--preserve",
        type=_preserved,
        default=PRESERVED,
        metavar="LIST",
        help="what a record keeps beside value and headers, of partition,timestamp,key (default: all three); otherwise "
        "it goes where its key belongs, has the time of writing, has no key",
    )
    replay.add_argument(
        "--rate",
        type=checks.positive,
        metavar="RECORDS/S",
        help="at most, over all partitions (else as fast as it goes)",
    )
    _add_write(replay)

    compact = command(
        commands, "compact", "spark", f"Keep the latest record of each key, as Parquet or in a topic. {_SPARK}"
    )
    compact.set_defaults(job="compact")
    _add_input(compact)
    target = compact.add_mutually_exclusive_group(required=True)
    target.add_argument("--out", metavar="DIR", help="files as `archive` writes them, which `replay --in` reads too")
    target.add_argument("--to-topic", metavar="TOPIC", help="made if missing, with as many partitions")
    compact.add_argument(
        "--null-keys", choices=("keep", "drop"), default="keep", help="records without a key: all of them, or none"
    )
    compact.add_argument("--delete-tombstones", action="store_true", help="leave out keys whose last value is null")
    compact.add_argument(
        "--before-offset",
        type=checks.count,
        metavar="N",
        help="as it was then: look at no record from offset N on, in any partition",
    )
    compact.add_argument("--overwrite", action="store_true", help="DIR may hold an earlier compaction, which goes")
    _add_write(compact)

    report = command(
        commands, "report", "spark", f"Count records, bytes, keys and time per partition and hour. {_SPARK}"
    )
    report.set_defaults(job="report")
    _add_input(report)
    _add_range(report)
    report.add_argument(
        "--by",
        type=_groups,
        default=("partition", "hour"),
        metavar="LIST",
        help="what a row is about: partition and one of hour, day, month, year, or one of them alone "
        "(default partition,hour)",
    )
    report.add_argument("--format", choices=("table", "json", "parquet"), help="of the rows (default table)")
    report.add_argument("--out", metavar="FILE", help="where the rows go (else standard output; not with parquet)")
    report.add_argument(
        "--plot", metavar="FILE", help="also draw it, as FILE.png, FILE.svg or FILE.pdf: pip install 'seglog[plot]'"
    )
    report.add_argument(
        "--lag-of",
        metavar="DIR",
        help="an archive, or the checkpoint of a streaming query: how far it is behind the end of the topic",
    )
    for job in (archive, replay, compact, report):
        job.add_argument("--master", metavar="URL", help="of Spark (else local[*], or as spark-submit says)")
        job.add_argument(
            "--conf", type=checks.pair, action="append", default=[], metavar="KEY=VALUE", help="of Spark; repeatable"
        )
        job.add_argument("--spark-log", action="store_true", help="show on stderr what Spark itself has to say")


def _add_input(job: argparse.ArgumentParser) -> None:
    source = job.add_mutually_exclusive_group(required=True)
    source.add_argument("--in", dest="archive", metavar="DIR", help="read an archive")
    source.add_argument("--topic", help="read a topic")
    job.add_argument("--accept-loss", action="store_true", help="go on without records of the topic that are gone")


def _add_range(job: argparse.ArgumentParser) -> None:
    job.add_argument(
        "--from", dest="start", metavar="MOMENT", help="each partition begins there (else at its beginning)"
    )
    job.add_argument("--until", metavar="MOMENT", help="each partition stops at its first record at or after this")
    job.add_argument("--local", action="store_true", help="read times in this machine's zone")


def _add_write(job: argparse.ArgumentParser) -> None:
    job.add_argument(
        "--job-id",
        metavar="ID",
        help="write effectively once: run again under the same ID, it writes what is missing, and nothing if it was "
        "finished; the first record of each batch gets a header seglog.spark. Without it every run writes everything",
    )
    job.add_argument("--ack", choices=("none", "os", "disk"), default="disk", help="what counts as written to a topic")
    job.add_argument("--compression", choices=_CODECS, default="zstd", help="of batches or files")


def _words(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
    if len(set(words)) < len(words):
        raise argparse.ArgumentTypeError(f"{text!r} names something twice")
    return words


def _preserved(text: str) -> tuple[str, ...]:
    return () if text == "none" else _words(text, PRESERVED)


def _groups(text: str) -> tuple[str, ...]:
    words = _words(text, ("partition", *PERIODS))
    if len(set(words) & set(PERIODS)) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} names two periods; one of {', '.join(PERIODS)} is enough")
    return words
