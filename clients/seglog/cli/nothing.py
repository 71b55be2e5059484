"""What a topic holds, for ``seglog consume`` that has printed nothing: the offsets and times that there are."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from seglog.cli.arguments import Options
from seglog.cli.common import warn, zone_of
from seglog.cli.lags import fate_of
from seglog.core.errors import count_of
from seglog.core.moments import AtOffset, AtTime, Edge, Moment, format_time
from seglog.core.offsets import PartitionLag
from seglog_protocol.errors import SeglogError

if TYPE_CHECKING:
    from seglog.client import Client

PARTITIONS_SHOWN_MAX: Final = 10
_WAIT: Final = "--follow, which waits for new records"


def say_what_there_is(client: "Client", options: Options, begin: Moment | None, end: Moment | None) -> None:
    """Say on stderr which records were asked for, which there are, and what to try.

    Says nothing where the broker does not answer: what was asked for has been done.
    """
    with suppress(SeglogError):
        ends = client.offsets(options.topic, partitions=options.partition, isolation=options.isolation)
        earliest = {found.partition: found.earliest for found in ends}
        lags = list(client.lag(options.topic, earliest, isolation=options.isolation).values())
        for line in lines_of(lags, options, begin, end):
            warn(f"note: {line}")


def lines_of(lags: Sequence[PartitionLag], options: Options, begin: Moment | None, end: Moment | None) -> Iterator[str]:
    """The sentences, from the lag of each partition's earliest offset."""
    yield f"{options.topic} has no record{_asked(options, begin, end)}"
    shown = [] if options.group is not None else lags  # one is often at the end, and `group describe` shows where
    for lag in shown[:PARTITIONS_SHOWN_MAX]:
        yield _held(lag, options)
    if len(shown) > PARTITIONS_SHOWN_MAX:
        yield f"seglog offsets {options.topic} shows {len(lags) - PARTITIONS_SHOWN_MAX:,} more"
    yield f"try {_advice(lags, options, begin, end)}"


def _asked(options: Options, begin: Moment | None, end: Moment | None) -> str:
    """What was asked for, with a space before it; empty for all records."""
    if options.group is not None:
        after = f" that group {options.group} has still to read"
    elif begin is None or begin is Edge.EARLIEST:
        after = ""
    else:
        after = f" at or after {_place(begin, options.start, options)}"
    if end is None:
        return after
    return f"{after}{' and' if after else ''} before {_place(end, options.until, options)}"


def _place(moment: Moment, typed: str, options: Options) -> str:
    if isinstance(moment, AtOffset):
        return f"offset {moment.offset:,}"
    if isinstance(moment, AtTime):
        return f"{typed} ({format_time(moment.timestamp, zone_of(options))})"
    return f"the {moment.value} offset"


def _held(lag: PartitionLag, options: Options) -> str:
    """What a partition holds."""
    name = f"{lag.topic}-{lag.partition}"
    fate = fate_of(lag.earliest_reason) if lag.earliest and lag.earliest_reason else ""
    if not lag.records:
        before = f", and {count_of(lag.earliest, 'offset')} before it {fate}" if fate else ""
        return f"{name} is empty: the next offset is {lag.latest:,}{before}"
    first, newest = lag.timestamp, lag.newest_timestamp
    times = ""
    if first is not None and newest is not None:
        times = f", of {format_time(first, zone_of(options))} to {format_time(newest, zone_of(options))}"
    before = f"; those before them {fate}" if fate else ""
    return f"{name} has offsets {lag.earliest:,} to {lag.latest - 1:,}{times}{before}"


def _advice(lags: Sequence[PartitionLag], options: Options, begin: Moment | None, end: Moment | None) -> str:
    """What to type instead."""
    kept = [lag for lag in lags if lag.records]
    if not kept:
        is_expired = any(lag.earliest_reason == "expired" for lag in lags)
        return _WAIT + (f"; seglog explain config {options.topic} shows how long it keeps them" if is_expired else "")
    if options.group is not None:
        return f"{_WAIT}; seglog group describe {options.group} shows where the group is"
    hints = []
    if begin is not None and begin is not Edge.EARLIEST:
        hints.append("--from earliest")
        newest = max(lag.newest_timestamp or 0 for lag in kept)
        if isinstance(begin, AtTime) and 0 < newest < begin.timestamp:
            hints.append(f"--from {format_time(newest, zone_of(options)).partition('T')[0]}")
    hints.append(_WAIT if end is None else "another --until")
    return ", or ".join(hints)
