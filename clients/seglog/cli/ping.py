"""``seglog ping``: also what containers call to see whether the broker is well."""

from seglog.cli.arguments import Options
from seglog.cli.common import open_client, print_json
from seglog.cli.exits import OK
from seglog.words import count_of, duration_of


def run(options: Options) -> int:
    """Show who answers. 0 when a broker does, whatever problems it reports: starting it anew would not mend them."""
    with open_client(options) as client:
        broker = client.broker
    if options.json:
        print_json({"server": options.server} | broker.to_wire())
        return OK
    recovery = ""
    if broker.recovery:
        done, size = broker.recovery.get("read_bytes", 0), broker.recovery.get("bytes", 0)
        left = broker.recovery.get("partitions", 0)
        recovery = f"{left} of them still recovering ({done / 1e6:,.0f} of {size / 1e6:,.0f} MB read), "
    problems = "; ".join(broker.problems) or "no problems"
    partitions = count_of(broker.partitions, "partition")
    print(f"{broker.broker} at {client.server}, up {duration_of(broker.uptime_ms)}, {partitions}, {recovery}{problems}")
    return OK
