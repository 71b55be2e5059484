"""``python -m seglog_broker.api.monitoring`` prints the page METRICS.md, made of the table of families."""

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from seglog_broker.api.monitoring.families import FAMILIES, STANDBY_FAMILIES, Family, Scope

_HEAD: Final = """\
# Metrics

What the broker tells about itself, by name. Prometheus reads them at `/metrics` ([CONFIG.md](CONFIG.md) has
`seglog.http.listen`), a program by `client.samples()`, and `seglog metrics` shows them. They are read when they are
asked for. The sizes of topics, the dirty ratio, the lag of groups in seconds and their time to loss are measured in the
background, every ten seconds or so.

Names end in their base unit, and those of counters in `_total`. A counter counts from the start of the broker. A
name never changes its meaning. `python -m seglog_broker.api.monitoring` prints this page from the table in the code.
"""

_SCOPES: Final = {
    Scope.BROKER: """\
## The broker

`listener` is the configured name of a listener of Kafka's clients, `native` or `http`; `api` the name of a request
as its protocol has it, such as `Produce` or `append`. `unknown` is an api that is not served, `other` a
page that is not there. A listener has a sample of the commonest requests from its first connection on, and of any other
from its first request on.
""",
    Scope.TOPICS: """\
## Topics

Of at most `seglog.metrics.topics.max` topics, the largest first, and of 2,000 partitions in all, whole topics; the
others are counted in `seglog_topics_left_out`. While there are fewer, all topics are shown, also one that is a
moment old.
""",
    Scope.GROUPS: """\
## Groups

Of at most `seglog.metrics.groups.max` groups, those with the largest lag first, and of 2,000 committed offsets in
all, whole groups; the others, and those whose name is longer than 249 characters, are counted in
`seglog_groups_left_out`. A group without members has them, too, for as long as its offsets are kept. Seconds of lag
and time to loss are as the last measurement found them, and go on from there.
""",
    Scope.SHARES: """\
## Share groups

Of at most `seglog.metrics.groups.max` share groups, those for which most records wait first, and of 2,000 partitions of
theirs in all, whole groups; `seglog_share_groups_left_out` counts the others. Ages, time to loss and most deliveries
are as the last measurement found them. Members and state are those of [groups](#groups).
""",
}

_STANDBY: Final = """\
## A standby

`seglogd --standby` has these alone, until it is promoted.
"""


def page() -> str:
    """The text of it."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for scope, text in _SCOPES.items():
        yield from _table(text, (family for family in FAMILIES if family.scope is scope))
    yield from _table(_STANDBY, STANDBY_FAMILIES)


def _table(text: str, families: Iterable[Family]) -> Iterator[str]:
    yield text
    yield "| name | type | labels | meaning |"
    yield "|---|---|---|---|"
    yield from map(_row, families)
    yield ""


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind.value} | {labels} | {family.help} |".replace("|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write(page())
