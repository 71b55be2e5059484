"""``seglog offsets``."""

from seglog.cli.arguments import Options
from seglog.cli.common import moment_of, open_client, print_json, print_table, zone_of
from seglog.cli.exits import OK, UsageError
from seglog.moments import AtTime, format_time


def run(options: Options) -> int:
    """Show the ends of a topic's partitions, and where a moment is in each."""
    moment = None if options.at is None else moment_of(options.at, options)
    if moment is not None and not isinstance(moment, AtTime):
        raise UsageError(f"--at {options.at}: write a time, for example -1h, 2019-01-01 or @1546300800000")
    with open_client(options) as client:
        found = client.offsets(options.topic, moment, partitions=options.partition)
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
