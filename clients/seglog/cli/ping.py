"""``seglog ping``: also what containers call to see whether the broker is well."""

from seglog.cli.arguments import Options
from seglog.cli.common import open_client, print_json
from seglog.cli.exits import OK
from seglog.words import count_of


def run(options: Options) -> int:
    """Show who answers. 0 when a broker does, whatever problems it reports: starting it anew would not mend them."""
    with open_client(options) as client:
        broker = client.broker
    if options.json:
        print_json({"server": options.server} | broker.to_wire())
        return OK
    problems = "; ".join(broker.problems) or "no problems"
    partitions = count_of(broker.partitions, "partition")
    print(f"{broker.broker} at {client.server}, up {uptime(broker.uptime_ms)}, {partitions}, {problems}")
    return OK


def uptime(milliseconds: int) -> str:
    """The two largest units of a duration: ``3 d 4 h``, ``12 s``."""
    seconds = milliseconds // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    while len(parts) > 1 and not parts[0][0]:
        del parts[0]
    return " ".join(f"{count} {unit}" for count, unit in parts[:2])
