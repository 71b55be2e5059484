"""``seglog metrics``: the broker's metrics in a table or as JSON."""

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import flag
from seglog.cli.common import print_json
from seglog.cli.exits import OK, InputError
from seglog.cli.figures import seconds_text
from seglog.cli.parameters import client_command, completed
from seglog.cli.tables import print_table, wrapped
from seglog.cli.terminal import columns_of_terminal, print_line
from seglog.core.moments import format_time

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog_protocol.messages import MetricBuckets, MetricFamily

_PATTERN: Final = "*?["
_PREFIX: Final = "seglog_"


def _metrics(client: "Client", options: Options) -> int:
    families = chosen(client, options.name)
    if options.json:
        print_json([as_json(family) for family in families])
    elif options.help_texts:
        for family in families:
            labels = f" by {', '.join(family.labels)}" if family.labels else ""
            print_line(f"{family.name} ({family.kind}{labels})", bold=True)
            for line in wrapped(family.help, columns_of_terminal() or 120, head="  "):
                print_line(line)
    else:
        print_table(("NAME", "LABELS", ">VALUE"), (row for family in families for row in rows_of(family)))
    return OK


def chosen(client: "Client", names: Sequence[str]) -> "list[MetricFamily]":
    """The families of these names, which may be patterns or lack ``seglog_``. Raises InputError for an unknown one."""
    has_patterns = any(character in name for name in names for character in _PATTERN)
    found = client.samples([] if has_patterns else [name for given in names for name in (given, f"{_PREFIX}{given}")])
    for name in names:
        if not any(_is(family.name, name) for family in found):
            raise InputError(_unknown(name, [family.name for family in client.samples()]))
    return [family for family in found if not names or any(_is(family.name, name) for name in names)]


def _is(family: str, name: str) -> bool:
    return fnmatchcase(family, name) or fnmatchcase(family, f"{_PREFIX}{name}")


def _unknown(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, [*known, *(found.removeprefix(_PREFIX) for found in known)], 1)
    hint = f"did you mean {near[0]}?" if near else "seglog metrics --help-texts lists them"
    return f"the broker has no metric {name}; {hint}"


def rows_of(family: "MetricFamily") -> "Iterator[tuple[str, str, str]]":
    """A row for each sample; of a histogram its count, mean and quantiles."""
    for sample in family.samples:
        pairs = (f"{label}={value}" for label, value in zip(family.labels, sample.labels, strict=True))
        yield family.name, ", ".join(pairs), _value_text(family.name, sample.value)


def _value_text(name: str, value: "int | float | MetricBuckets") -> str:
    from seglog_protocol.messages import MetricBuckets

    if isinstance(value, MetricBuckets):
        from seglog.cli.overview.readings import quantile_of

        if not value.count:
            return "0"
        p50, p99 = (seconds_text(quantile_of(value.bounds, value.counts, share)) for share in (0.5, 0.99))
        return f"{value.count:,}: mean {seconds_text(value.sum / value.count)}, p50 {p50}, p99 {p99}"
    if math.isinf(value) or math.isnan(value):
        return "+Inf" if value > 0 else "-Inf" if value < 0 else "NaN"
    if name.endswith("_timestamp_seconds") or name == "seglog_start_time_seconds":
        return format_time(round(value * 1000)) if value else "0"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"


def as_json(family: "MetricFamily") -> dict[str, Any]:
    """A family as a map; infinite values are text, ``+Inf``, as Prometheus writes them: JSON has none."""
    from seglog_protocol.messages import MetricBuckets

    samples: list[dict[str, Any]] = []
    for sample in family.samples:
        value, labels = sample.value, dict(zip(family.labels, sample.labels, strict=True))
        if isinstance(value, MetricBuckets):
            buckets = {name: getattr(value, name) for name in ("bounds", "counts", "sum", "count")}
            samples.append({"labels": labels, **buckets})
        else:
            samples.append({"labels": labels, "value": value if math.isfinite(value) else _value_text("", value)})
    return {"name": family.name, "kind": family.kind, "help": family.help, "samples": samples}


COMMAND: Final = client_command(
    "metrics",
    _metrics,
    "The numbers that Prometheus scrapes, under the same names; docs/METRICS.md explains each. Of a histogram the "
    "table has count, mean, median and 99th percentile since the broker's start.",
    click.Argument(
        ["name"],
        nargs=-1,
        metavar="[NAME]...",
        help="Only these, with or without seglog_; patterns such as disk_*.",
        shell_complete=completed("metrics"),
    ),
    flag("--help-texts", "Show what each means instead of its values."),
    example="seglog metrics disk_free_bytes\nseglog metrics 'group_*' --json",
)
