"""``seglog offsets``."""

import re
import sys
from collections.abc import Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from seglog.cli.arguments import Options
from seglog.cli.commands import TIMES, Command, Option
from seglog.cli.common import moment_of, open_client, print_json, warn, zone_of
from seglog.cli.exits import FAILED, OK, InputError, UsageError
from seglog.cli.parameters import isolation, local, partitions, topic
from seglog.cli.tables import print_table
from seglog.core.moments import AtTime, format_time, to_positions

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.core.offsets import PartitionLag

_PLACE: Final = re.compile(r"(\d{1,10})[:=](\d{1,19})", re.ASCII)


def run(options: Options) -> int:
    """Show the ends of a topic's partitions, and the offset at a time in each; or how far positions are behind."""
    if options.position:
        return _lag(options)
    moment = None if options.at is None else moment_of(options.at, options)
    if moment is not None and not isinstance(moment, AtTime):
        raise UsageError(f"--at: must be a time, not {options.at!r}; for example -1h, 2019-01-01 or @1546300800000")
    with open_client(options) as client:
        found = client.offsets(options.topic, moment, partitions=options.partition, isolation=options.isolation)
    names = ["topic", "partition", "earliest", "latest", "durable", "leader_epoch"]
    names += ["offset", "timestamp"] if moment is not None else []
    if options.json:
        print_json([{name: getattr(offsets, name) for name in names} for offsets in found])
        return OK
    rows = []
    for offsets in found:
        row = [getattr(offsets, name) for name in names[:6]]
        if moment is not None:
            at = -1 if offsets.timestamp is None else offsets.timestamp
            row += ["-" if offsets.offset is None else offsets.offset, format_time(at, zone_of(options))]
        rows.append(row)
    print_table([name.upper().replace("_", " ") for name in names], rows)
    return OK


def _lag(options: Options) -> int:
    """Show how far positions are behind; 1 where records before them are lost, or they are of another log."""
    from seglog.cli.lags import lag_as_json, what_is_wrong

    if options.at is not None:
        raise UsageError("--at and --position exclude each other")
    with open_client(options) as client:
        positions = _positions(client, options)
        if options.partition is not None:
            positions = {number: offset for number, offset in positions.items() if number in options.partition}
        found = list(client.lag(options.topic, positions, isolation=options.isolation).values())
    if options.json:
        print_json([lag_as_json(lag) for lag in found])
    else:
        titles = ("TOPIC", "PARTITION", "POSITION", "LATEST", "RECORDS", "BEHIND", "NEXT RECORD", "LOST", "KEPT")
        print_table(titles, [_row(lag, zone_of(options)) for lag in found])
    wrong = [sentence for lag in found if (sentence := what_is_wrong(lag)) is not None]
    for sentence in wrong:
        warn(sentence)
    return FAILED if wrong else OK


def _positions(client: "Client", options: Options) -> dict[int, int]:
    """The values of ``--position``, as {partition: offset}."""
    positions: dict[int, int] = {}
    for text in options.position:
        place = _PLACE.fullmatch(text)
        if place is not None:
            some = {int(place[1]): int(place[2])}
        elif text == "earliest":
            some = {offsets.partition: offsets.earliest for offsets in client.offsets(options.topic)}
        else:
            some = _read(text)
        twice = positions.keys() & some.keys()
        if twice:
            raise UsageError(f"--position {text}: partition {min(twice)} has a position already")
        positions |= some
    return positions


def _read(name: str) -> dict[int, int]:
    """The positions in a file of JSON."""
    import json
    from pathlib import Path

    if name != "-" and not Path(name).exists():
        raise UsageError(
            f"--position {name}: must be PARTITION:OFFSET, for example 0:1200, the name of a file with positions, or "
            "`earliest`"
        )
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError("it is not an object")  # noqa: TRY301 - wrong as others are
        return to_positions(value)
    except (ValueError, TypeError) as error:
        example = 'for example {"0": 1200, "1": 900}'
        raise InputError(f"{name} is not what json.dumps(consumer.positions()) writes, {example}: {error}") from error


def _row(lag: "PartitionLag", zone: tzinfo | None) -> Sequence[Any]:
    from seglog.cli.lags import behind, kept

    return (
        lag.topic,
        lag.partition,
        lag.position,
        lag.latest,
        lag.records,
        "-" if lag.seconds is None else behind(lag),
        format_time(-1 if lag.timestamp is None else lag.timestamp, zone),
        lag.lost,
        kept(lag),
    )


COMMAND: Final = Command(
    "offsets",
    runs=run,
    help="With --position it exits with 1 where records before a position are lost, or the position is beyond the end.",
    params=[
        topic(),
        Option(["--at"], metavar="TIME", help="Also show the first record at or after this time."),
        Option(
            ["--position"],
            multiple=True,
            metavar="PARTITION:OFFSET",
            help="Show how far a reader at this position is behind, and when retention reaches it; repeatable. Also "
            "a file with json.dumps(consumer.positions()), - for standard input, or `earliest`.",
        ),
        isolation("With read_committed a partition ends where its first open transaction begins."),
        partitions(),
        local(),
    ],
    times=TIMES,
    example="seglog offsets clicks --at -1h\nseglog offsets clicks --position 0:1200 --position 1:900",
)
