"""What can be typed."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from seglog import __version__
from seglog.cli import checks
from seglog.cli.spark_arguments import add_spark_commands

DEFAULT_SERVER: Final = "localhost:9192"
CONNECT_SECONDS: Final = 5.0
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_EVERY_INTERFACE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - to be recognised
_MOMENT_OPTIONS: Final = ("--from", "--until", "--at", "--timestamp", "--before")
_LOOKS_RELATIVE: Final = re.compile(r"-\d")

MOMENTS: Final = (
    "a MOMENT is an offset (1200), a millisecond timestamp (@1546300800000), a relative time (-1h, -2d12h), "
    "now, today, yesterday, or ISO 8601 (2019-01-01T10:00); without a zone it is UTC. Exit codes: 0 ok, 1 failed, "
    "2 usage, 3 not reachable, 4 refused by the broker, 130 interrupted"
)


@dataclass(slots=True)
class Options:
    """The parsed command line; which fields are there depends on the command."""

    module: str
    server: str
    json: bool
    connect_timeout: float
    values: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def join_moments(arguments: Sequence[str]) -> list[str]:
    """``--from -1h`` as ``--from=-1h``: argparse would take ``-1h`` for an option of its own."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in _MOMENT_OPTIONS and _LOOKS_RELATIVE.match(argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse; a FILE may also stand behind the options, which argparse itself does not take for the missing one."""
    parsed, rest = parser.parse_known_args(arguments)
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(parsed, "file", None) == "-":
        parsed.file = rest[0]
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return parsed


def options_from(parsed: argparse.Namespace) -> Options:
    """Fill in what was not typed: the server from SEGLOG_SERVER, else the broker that is configured beside us."""
    values = vars(parsed)
    return Options(
        module=values.pop("module"),
        server=values.pop("server", None) or os.environ.get("SEGLOG_SERVER") or _server_beside(os.environ),
        json=values.pop("json", False),
        connect_timeout=values.pop("connect_timeout", CONNECT_SECONDS),
        values=values,
    )


def _server_beside(environ: Mapping[str, str]) -> str:
    """Where SEGLOG_LISTEN has a broker listen, as in a container that runs one; else localhost:9192."""
    host, _, port = environ.get("SEGLOG_LISTEN", "").rpartition(":")
    if not host or not port.isdecimal() or int(port) == 0:
        return DEFAULT_SERVER
    return f"{'localhost' if host in _EVERY_INTERFACE else host}:{port}"


def make_parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    # The common options stand before or behind the command; SUPPRESS keeps the second parser from undoing the first.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--server",
        metavar="HOST:PORT",
        help="the broker (else SEGLOG_SERVER, else where SEGLOG_LISTEN says, else localhost:9192)",
    )
    common.add_argument("--json", action="store_true", help="output for machines")
    common.add_argument("--connect-timeout", type=checks.seconds, metavar="SECONDS", help="how long to try to connect")
    parser = argparse.ArgumentParser(
        prog="seglog", description="Talk to a seglog broker.", parents=[common], epilog=MOMENTS, allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(to: Any, name: str, module: str, summary: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = to.add_parser(
            name, help=summary, description=summary, parents=[common], allow_abbrev=False, epilog=MOMENTS
        )
        made.set_defaults(module=module)
        return made

    topic = commands.add_parser("topic", help="create, list, describe, alter, truncate and delete topics")
    _add_topic_commands(topic.add_subparsers(title="commands", metavar="COMMAND", required=True), command)
    _add_produce(command(commands, "produce", "produce", "Send lines of a file or of standard input as records."))
    _add_consume(command(commands, "consume", "consume", "Print records, from a place in the log to its end."))
    offsets = command(commands, "offsets", "offsets", "Show the ends of every partition, and where a moment is.")
    offsets.add_argument("topic")
    offsets.add_argument("--at", metavar="MOMENT", help="also the first record at or after this time")
    offsets.add_argument(
        "--partition", type=checks.count, action="append", metavar="N", help="only this one; repeatable"
    )
    offsets.add_argument(
        "--position",
        action="append",
        metavar="PARTITION:OFFSET",
        help="how far a reader at this place is behind, and when retention reaches it; repeatable. Or a file with "
        "json.dumps(consumer.positions()), - for standard input, or `earliest`. Exits with 1 where records are lost",
    )
    offsets.add_argument("--local", action="store_true", help="read and show times in this machine's zone")
    explain = commands.add_parser(
        "explain", help="say how a seek goes, why a segment is still there, and whose a value is"
    )
    _add_explain_commands(explain.add_subparsers(title="commands", metavar="COMMAND", required=True), command)
    load = commands.add_parser("load", help="put load on a broker and measure throughput and latency")
    _add_load_commands(load.add_subparsers(title="commands", metavar="COMMAND", required=True), command)
    spark = commands.add_parser("spark", help="archive, replay, compact and report on topics, with Spark")
    add_spark_commands(spark.add_subparsers(title="commands", metavar="COMMAND", required=True), command)
    _add_ping(command(commands, "ping", "ping", "Show who answers, its version, uptime, data directory and problems."))
    return parser


def _add_ping(ping: argparse.ArgumentParser) -> None:
    probes = ping.add_mutually_exclusive_group()
    probes.add_argument(
        "--ready",
        action="store_true",
        help="exit with 0 when at least one partition can be read, or there is none, whatever its problems; else 1",
    )
    probes.add_argument(
        "--live", action="store_true", help="exit with 0 when it answers at all, whatever it says; else with 3"
    )


def _add_topic_commands(commands: Any, command: Any) -> None:
    create = command(commands, "create", "topics", "Create a topic.")
    create.set_defaults(action="create")
    create.add_argument("topic")
    create.add_argument(
        "--partitions", type=checks.positive, metavar="N", help="how many (else the broker's num.partitions)"
    )
    create.add_argument(
        "--config", type=checks.pair, action="append", default=[], metavar="KEY=VALUE", help="Kafka's names; repeatable"
    )
    create.add_argument("--if-not-exists", action="store_true", help="be content with one that is there")
    listing = command(commands, "list", "topics", "List all topics.")
    listing.set_defaults(action="list")
    describe = command(commands, "describe", "topics", "Show a topic, its configuration and where each value is from.")
    describe.set_defaults(action="describe")
    describe.add_argument("topic")
    alter = command(commands, "alter", "topics", "Change a topic's configuration, or add partitions.")
    alter.set_defaults(action="alter")
    alter.add_argument("topic")
    alter.add_argument(
        "--config", type=checks.pair, action="append", default=[], metavar="KEY=VALUE", help="set a value; repeatable"
    )
    alter.add_argument(
        "--reset", action="append", default=[], metavar="KEY", help="back to the broker's default; repeatable"
    )
    alter.add_argument("--partitions", type=checks.positive, metavar="N", help="the new, higher number of partitions")
    truncate = command(
        commands, "truncate", "topics", "Delete the records of a topic that lie before an offset or a time."
    )
    truncate.set_defaults(action="truncate")
    truncate.add_argument("topic")
    truncate.add_argument(
        "--before",
        type=checks.place_of_partition,
        action="append",
        required=True,
        metavar="[PARTITION:]MOMENT",
        help="the first to keep: a time for all partitions (-7d, 2024-01-01), a time or an offset for one (0:-7d, "
        "0:5000), or `end` to keep nothing; repeatable",
    )
    truncate.add_argument("--local", action="store_true", help="read times in this machine's zone")
    delete = command(commands, "delete", "topics", "Delete a topic and its data.")
    delete.set_defaults(action="delete")
    delete.add_argument("topic")
    delete.add_argument("--yes", action="store_true", help="do not ask; where there is no terminal nothing is asked")


def _add_explain_commands(commands: Any, command: Any) -> None:
    seek = command(commands, "seek", "explain", "Tell how a fetch finds an offset or a time: the trace of a real seek.")
    seek.set_defaults(action="seek")
    seek.add_argument("topic")
    seek.add_argument("partition", type=checks.count)
    place = seek.add_mutually_exclusive_group(required=True)
    place.add_argument("--offset", type=checks.count, metavar="N")
    place.add_argument("--timestamp", metavar="MOMENT", help="the first record at or after this time")
    seek.add_argument("--local", action="store_true", help="read and show times in this machine's zone")
    segments = command(
        commands, "segments", "explain", "Tell why each segment is still there, and from when to when it can go."
    )
    segments.set_defaults(action="segments")
    segments.add_argument("topic")
    segments.add_argument("partition", type=checks.count, nargs="?", help="only this one")
    segments.add_argument(
        "--drops", action="store_true", help="tell what compaction would drop, however much is to be read for it"
    )
    segments.add_argument("--local", action="store_true", help="show times in this machine's zone")
    config = command(commands, "config", "explain", "Show every configuration value of a topic, and its origin.")
    config.set_defaults(action="config")
    config.add_argument("topic")


def _add_produce(produce: argparse.ArgumentParser) -> None:
    produce.add_argument("topic")
    produce.add_argument("file", nargs="?", default="-", help="what to send (else standard input)")
    produce.add_argument(
        "--format",
        choices=("text", "json", "raw"),
        default="text",
        help="text: a record a line; json: the same, every line checked to be JSON; raw: all input is one record",
    )
    produce.add_argument("--key-field", metavar="NAME", help="json: the field that becomes the record's key")
    produce.add_argument("--timestamp-field", metavar="NAME", help="json: the field that becomes its timestamp")
    produce.add_argument("--timestamp-unit", choices=("ms", "s", "iso"), default="ms", help="how that field is written")
    produce.add_argument("--skip-bad", action="store_true", help="count bad lines instead of stopping at the first")
    produce.add_argument("--partition", type=checks.count, metavar="N", help="send all to this partition")
    produce.add_argument(
        "--header",
        type=checks.pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for every record; repeatable",
    )
    produce.add_argument("--compression", choices=CODECS, default="none")
    produce.add_argument(
        "--ack",
        choices=("none", "os", "disk"),
        default="disk",
        help="what counts as sent: os survives a crash of the broker, disk a power cut (default)",
    )
    produce.add_argument(
        "--linger-ms", type=checks.milliseconds, default=5.0, metavar="MS", help="how long a batch may wait to fill"
    )
    produce.add_argument("--batch-bytes", type=checks.size, default=256 * 1024, metavar="BYTES")
    produce.add_argument(
        "--delivery-timeout",
        type=checks.some_seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long a record may take to be acknowledged, a broker that is away included (default 120)",
    )


def _add_consume(consume: argparse.ArgumentParser) -> None:
    consume.add_argument("topic")
    consume.add_argument(
        "--from", dest="start", metavar="MOMENT", help="where to start: a MOMENT, earliest (default) or latest"
    )
    consume.add_argument("--until", metavar="MOMENT", help="each partition stops at its first record at or after this")
    consume.add_argument("--count", type=checks.count, metavar="N", help="stop after so many records of all partitions")
    consume.add_argument("--follow", action="store_true", help="wait for new records; starts at latest unless --from")
    consume.add_argument(
        "--partition", type=checks.count, action="append", metavar="N", help="only this one; repeatable"
    )
    consume.add_argument(
        "--on-out-of-range",
        choices=("error", "earliest", "latest"),
        default="error",
        help="where to go on when the next offset is not in the log, for instance because it has expired meanwhile",
    )
    consume.add_argument(
        "--skip-damaged", action="store_true", help="warn of records that cannot be read, and go on behind them"
    )
    consume.add_argument(
        "--format",
        choices=("text", "json", "raw"),
        default="text",
        help="text: a value a line; json: an object a line; raw: values with nothing between them",
    )
    consume.add_argument("--keys", action="store_true", help="text: the key before the value")
    consume.add_argument("--headers", action="store_true", help="text: the headers before the value")
    consume.add_argument("--offsets", action="store_true", help="text: partition, offset and time before the value")
    consume.add_argument("--local", action="store_true", help="read and show times in this machine's zone")


def _add_load_commands(commands: Any, command: Any) -> None:
    produce = command(commands, "produce", "load", "Append batches: throughput, and the latency of acknowledgements.")
    produce.set_defaults(verb="produce")
    consume = command(commands, "consume", "load", "Fetch batches: throughput, and the latency of fetches.")
    consume.set_defaults(verb="consume")
    roundtrip = command(commands, "roundtrip", "load", "Append and fetch in one process: the latency from end to end.")
    roundtrip.set_defaults(verb="roundtrip")
    for verb in (produce, roundtrip):
        verb.add_argument("topic", nargs="?", help="made when it is missing (else a new one, load-...)")
        verb.add_argument(
            "--ack",
            choices=("none", "os", "disk") if verb is produce else ("os", "disk"),
            default="disk",
            help="what is asked for: os survives a crash of the broker, disk a power cut (default)",
        )
        verb.add_argument(
            "--rate",
            type=checks.amount,
            metavar="RECORDS/S",
            help="target over all connections; latency counts from when a record was due, so that a stall shows in all "
            "that waited (0: as fast as answers come; default: "
            + ("that" if verb is produce else "1000")
            + "); without --batch-... a batch is what falls due in 5 ms",
        )
        verb.add_argument(
            "--batch-records", type=checks.positive, metavar="N", help="records a batch, whatever their size"
        )
        verb.add_argument("--batch-bytes", type=checks.size, metavar="BYTES", help="bytes a batch (default 65536)")
    consume.add_argument("topic", nargs="?", help="what to read (else a new topic, filled before: 1,000,000 records)")
    consume.add_argument(
        "--from", dest="start", metavar="MOMENT", help="where to start: a MOMENT, earliest (default) or latest"
    )
    consume.add_argument("--follow", action="store_true", help="wait for new records; starts at latest unless --from")
    consume.add_argument("--local", action="store_true", help="read times in this machine's zone")
    consume.add_argument(
        "--batch-bytes",
        type=checks.size,
        metavar="BYTES",
        help="most a fetch brings of a partition (default 1048576)",
    )
    for verb in (produce, consume, roundtrip):
        verb.add_argument(
            "--record-size", type=checks.size, default=100, metavar="BYTES", help="bytes of value a record"
        )
        verb.add_argument("--compression", choices=CODECS, default="none")
        verb.add_argument("--partitions", type=checks.positive, metavar="N", help="of a topic that is made (default 1)")
        verb.add_argument("--keep", action="store_true", help="do not remove a topic that was made")
        verb.add_argument("--connections", type=checks.positive, default=1, metavar="N")
        verb.add_argument("--pipeline", type=checks.positive, metavar="N", help="requests in flight a connection")
        verb.add_argument(
            "--duration", type=checks.some_seconds, metavar="SECONDS", help="measure so long (default 10)"
        )
        verb.add_argument("--count", type=checks.positive, metavar="RECORDS", help="measure so many records")
        verb.add_argument("--warmup", type=checks.seconds, metavar="SECONDS", help="not measured, before the rest")
        verb.add_argument("--seed", type=checks.count, default=0, metavar="N", help="of the records' contents")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"seglog {__version__}")
        parser.exit(0)
