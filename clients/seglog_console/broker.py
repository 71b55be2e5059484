"""The broker: what is to be done about it, its listeners, its machine, and each key of its configuration."""

import time
from itertools import chain
from typing import Any, Final

from seglog.cli.checkups.model import Verdict
from seglog.cli.checkups.told import DISK_FAMILIES, Told, disk_of, told_checks
from seglog_console.pages import View, part_of, unless_refused
from seglog_protocol.messages import DescribeBrokerReply
from seglog_protocol.quantities import with_reading

INTERVAL_SECONDS: Final = 10.0


async def context(view: View) -> dict[str, Any]:
    """The checks of ``seglog doctor`` that can be made from afar, worst first, and what the broker says of itself."""
    told, refusal = await unless_refused(view.session.viewer.shared("told", lambda: _told(view)), None)
    checks = [] if told is None else sorted(told_checks(told), key=lambda check: -list(Verdict).index(check.verdict))
    described = None if told is None else told.described
    config = {} if described is None else described.config
    entries = sorted(config.items(), key=lambda item: (item[1].origin == "default", item[0]))
    return {
        "refusals": [refusal] if refusal else [],
        "problems": [(f"{c.name}: {c.found}", c.remedy, "") for c in checks if c.verdict is Verdict.PROBLEM],
        "warnings": [(f"{c.name}: {c.found}", c.remedy, "") for c in checks if c.verdict is Verdict.WARNING],
        "checks": [check for check in checks if check.verdict in {Verdict.OK, Verdict.UNKNOWN}],
        "described": described,
        "machine": [] if described is None else _machine(described),
        "entries": part_of(view, entries, "keys"),
        "reading": with_reading,
    }


async def _told(view: View) -> Told:
    client = view.client
    hello = await client.ping()
    before = time.time()
    described = await client.describe_broker()
    after = time.time()
    disk = disk_of(await client.samples(DISK_FAMILIES))
    offset = described.now_ms / 1000 - (before + after) / 2
    return Told(client.server, client.principal, client.tls_version, hello, described, disk, offset, after - before)


def _machine(described: DescribeBrokerReply) -> list[tuple[str, str]]:
    """Versions and limits, each with its name."""
    limits = [(name.replace("_", " "), f"{value:,}") for name, value in described.limits.items() if value]
    process = [("process", f"{described.process}, user {described.user}")]
    return list(chain(described.versions.items(), limits, process))
