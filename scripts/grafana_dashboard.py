"""Writes deploy/grafana/seglog.json, the dashboard: rows of panels, each with a title, a unit and its queries.

    python scripts/grafana_dashboard.py

A panel's description is the help of the metrics that it shows. A test refuses a file that this would change.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog_broker.api.monitoring.families import FAMILIES_BY_NAME

FILE: Final = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "seglog.json"

WIDTH: Final = 24
"""Of the page, in Grafana's units."""
_STAT_HEIGHT: Final = 4
_GRAPH_HEIGHT: Final = 8

_HERE: Final = 'job=~"$job", instance=~"$instance"'
_TOPIC: Final = f'{_HERE}, topic=~"$topic"'
_GROUP: Final = f'{_TOPIC}, group=~"$group"'


class Query(NamedTuple):
    """An expression, and what its series are called."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """``kind`` is Grafana's; of a ``stat`` or ``table`` the value of now is shown."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    warn: float | None = None
    """The value from which on a stat is red; below it, it is green. None: it has no colour."""
    alarm_below: bool = False
    """The stat is red below ``warn``."""


def _rate(name: str, labels: str = _HERE) -> str:
    return f"rate({name}{{{labels}}}[$__rate_interval])"


def _quantile(share: float, name: str, *by: str) -> str:
    grouped = ", ".join(("le", *by))
    return f"histogram_quantile({share}, sum by ({grouped}) ({_rate(f'{name}_bucket')}))"


def _stat(title: str, unit: str, expression: str, *, warn: float | None = 1, below: bool = False) -> Panel:
    return Panel(title, unit, (Query(expression, "{{instance}}"),), "stat", 3, warn, below)


def _graph(title: str, unit: str, *queries: tuple[str, str], width: int = 8) -> Panel:
    return Panel(title, unit, tuple(Query(*query) for query in queries), width=width)


def _gauge(name: str, labels: str = _HERE) -> str:
    return f"{name}{{{labels}}}"


def _by_topic(title: str, unit: str, expression: str, width: int = 8) -> Panel:
    return _graph(title, unit, (f"topk(10, sum by (topic) ({expression}))", "{{topic}}"), width=width)


def _by_group(ranked: str, expression: str) -> tuple[str, str]:
    return f"{ranked} by (group, topic) ({expression}))", "{{group}} {{topic}}"


def _table(title: str, unit: str, expression: str, *, width: int = 8) -> Panel:
    return Panel(title, unit, (Query(expression, ""),), "table", width)


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Is it well?": (
        _stat("Problems", "none", _gauge("seglog_problems")),
        _stat("Partitions not served", "none", f'sum by (instance) (seglog_partitions{{{_HERE}, state!="serving"}})'),
        _stat("Damaged ranges", "none", _gauge("seglog_damaged_ranges")),
        _stat("Appends refused, disk full", "bool_yes_no", _gauge("seglog_disk_full")),
        _stat("Disk full in", "s", _gauge("seglog_disk_full_in_seconds"), warn=86_400, below=True),
        _stat("Not on the disk yet", "bytes", _gauge("seglog_not_durable_bytes"), warn=None),
        _stat(
            "Least time to loss of a group",
            "s",
            f"min by (instance) (seglog_group_time_to_loss_seconds{{{_GROUP}}})",
            warn=3600,
            below=True,
        ),
        _stat("Up for", "s", _gauge("seglog_uptime_seconds"), warn=None),
        _table("Runs", "none", _gauge("seglog_build_info"), width=12),
        _table("Starts within a day", "none", f"changes(seglog_start_time_seconds{{{_HERE}}}[1d])", width=12),
    ),
    "Requests": (
        _graph(
            "Requests", "reqps", (f"sum by (listener, api) ({_rate('seglog_requests_total')})", "{{listener}} {{api}}")
        ),
        _graph(
            "Errors in answers",
            "ops",
            (f"sum by (listener, api, code) ({_rate('seglog_request_errors_total')})", "{{listener}} {{api}} {{code}}"),
        ),
        _graph(
            "Time of a request",
            "s",
            (_quantile(0.5, "seglog_request_duration_seconds", "listener", "api"), "p50 {{listener}} {{api}}"),
            (_quantile(0.99, "seglog_request_duration_seconds", "listener", "api"), "p99 {{listener}} {{api}}"),
        ),
        _graph(
            "Bytes of records",
            "Bps",
            (_rate("seglog_append_bytes_total"), "appended {{instance}}"),
            (_rate("seglog_fetch_bytes_total"), "fetched {{instance}}"),
        ),
        _graph(
            "Bytes of requests and answers",
            "Bps",
            (f"sum by (listener) ({_rate('seglog_request_bytes_total')})", "in {{listener}}"),
            (f"sum by (listener) ({_rate('seglog_response_bytes_total')})", "out {{listener}}"),
        ),
        _graph(
            "Batches appended",
            "ops",
            (_rate("seglog_append_batches_total"), "ack {{ack}} {{instance}}"),
            (_rate("seglog_duplicates_total"), "duplicates {{instance}}"),
        ),
        _graph(
            "Fetches that wait",
            "short",
            (_gauge("seglog_fetches_waiting"), "wait now {{instance}}"),
            (_rate("seglog_fetches_waited_total"), "had to wait, per second {{instance}}"),
        ),
        _graph("Reads that wait for the disk", "ops", (_rate("seglog_cold_reads_total"), "{{instance}}")),
        _graph("Answers that peers do not take", "short", (_gauge("seglog_answers_waiting"), "{{instance}}")),
    ),
    "Durability": (
        _graph("Bytes not on the disk yet", "bytes", (_gauge("seglog_not_durable_bytes"), "{{instance}}")),
        _graph("Age of the oldest of them", "s", (_gauge("seglog_not_durable_seconds"), "{{instance}}")),
        _graph(
            "Fsyncs",
            "s",
            (_quantile(0.5, "seglog_fsync_duration_seconds", "instance"), "p50 {{instance}}"),
            (_quantile(0.99, "seglog_fsync_duration_seconds", "instance"), "p99 {{instance}}"),
        ),
        _graph("Fsyncs done", "ops", (_rate("seglog_fsyncs_total"), "{{instance}}"), width=12),
        _by_topic(
            "Records of topics that are not on the disk yet",
            "short",
            f"seglog_partition_log_end_offset{{{_TOPIC}}} - seglog_partition_durable_offset{{{_TOPIC}}}",
            width=12,
        ),
    ),
    "Loop and limits": (
        _graph("Busy share of the loop", "percentunit", (_rate("seglog_loop_busy_seconds_total"), "{{instance}}")),
        _graph(
            "Longest turn and stall of the last minute",
            "s",
            (_gauge("seglog_loop_longest_turn_seconds"), "turn {{instance}}"),
            (_gauge("seglog_loop_longest_stall_seconds"), "stall {{instance}}"),
        ),
        _graph("Turns", "ops", (_rate("seglog_loop_turns_total"), "{{instance}}")),
        _graph(
            "Connections",
            "short",
            (f"sum by (listener) ({_gauge('seglog_connections')})", "{{listener}}"),
            (_gauge("seglog_connections_limit"), "limit {{instance}}"),
        ),
        _graph(
            "Connections that come and go",
            "ops",
            (f"sum by (listener) ({_rate('seglog_connections_accepted_total')})", "accepted {{listener}}"),
            (f"sum by (reason) ({_rate('seglog_connections_ended_total')})", "ended: {{reason}}"),
        ),
        _graph(
            "Memory of requests and answers",
            "bytes",
            (_gauge("seglog_request_memory_bytes"), "requests {{instance}}"),
            (_gauge("seglog_request_memory_limit_bytes"), "limit of requests {{instance}}"),
            (_gauge("seglog_response_memory_bytes"), "answers {{instance}}"),
        ),
        _graph(
            "Requests that wait for memory",
            "short",
            (_gauge("seglog_request_memory_waiting"), "wait now {{instance}}"),
            (_rate("seglog_request_memory_waits_total"), "had to wait, per second {{instance}}"),
        ),
        _graph(
            "Open files of segments",
            "short",
            (_gauge("seglog_open_files"), "{{instance}}"),
            (_gauge("seglog_open_files_limit"), "limit {{instance}}"),
        ),
        _graph(
            "Processor and memory of the process",
            "short",
            (_rate("seglog_process_cpu_seconds_total"), "cores {{instance}}"),
            (f"{_gauge('seglog_process_resident_memory_bytes')} / 2^30", "GiB {{instance}}"),
        ),
    ),
    "Disk": (
        _graph(
            "Space",
            "bytes",
            (_gauge("seglog_disk_free_bytes"), "free {{instance}}"),
            (_gauge("seglog_disk_size_bytes"), "size {{instance}}"),
            (_gauge("seglog_ballast_bytes"), "kept for when it is full {{instance}}"),
        ),
        _graph("Full in", "s", (_gauge("seglog_disk_full_in_seconds"), "{{instance}}")),
        _graph("Free inodes", "short", (_gauge("seglog_disk_free_inodes"), "{{instance}}")),
        _graph(
            "Segments",
            "ops",
            (_rate("seglog_segments_rolled_total"), "rolled {{instance}}"),
            (_rate("seglog_segments_expired_total"), "expired {{instance}}"),
        ),
        _graph(
            "Retention",
            "short",
            (_rate("seglog_expired_bytes_total"), "bytes deleted per second {{instance}}"),
            (_gauge("seglog_retention_next_loss_seconds"), "seconds to the next segment {{instance}}"),
        ),
        _graph(
            "Partitions that are not served",
            "short",
            (f'sum by (state) (seglog_partitions{{{_HERE}, state!="serving"}})', "{{state}}"),
        ),
        _graph(
            "Recovery",
            "short",
            (_gauge("seglog_recovery_ratio"), "done {{instance}}"),
            (_rate("seglog_partitions_recovered_total"), "partitions per second {{instance}}"),
            (_rate("seglog_recovery_bytes_total"), "bytes per second {{instance}}"),
        ),
        _graph(
            "Segments still in a backup",
            "short",
            (_gauge("seglog_awaited_segments"), "segments {{instance}}"),
            (_gauge("seglog_awaited_bytes"), "bytes {{instance}}"),
        ),
        _graph(
            "Compaction",
            "Bps",
            (_rate("seglog_compaction_read_bytes_total"), "read {{instance}}"),
            (_rate("seglog_compaction_written_bytes_total"), "written {{instance}}"),
        ),
        _graph(
            "Rounds of compaction", "ops", (f"sum by (outcome) ({_rate('seglog_compactions_total')})", "{{outcome}}")
        ),
        _graph(
            "Scrub",
            "Bps",
            (_rate("seglog_scrubbed_bytes_total"), "bytes {{instance}}"),
            (_rate("seglog_scrubbed_segments_total"), "segments {{instance}}"),
        ),
        _graph(
            "Passes of the scrub",
            "short",
            (_gauge("seglog_scrub_pass_ratio"), "done of this one {{instance}}"),
            (_gauge("seglog_scrub_passes_total"), "ended {{instance}}"),
            (_gauge("seglog_scrub_findings_total"), "findings {{instance}}"),
            (
                f"(time() - ({_gauge('seglog_scrub_last_pass_timestamp_seconds')} > 0)) / 86400",
                "days since the last {{instance}}",
            ),
        ),
        _graph(
            "Lost if the disk died now",
            "s",
            (_gauge("seglog_backup_loss_seconds"), "{{instance}}"),
            (_gauge("seglog_backup_loss_limit_seconds"), "asked for {{instance}}"),
        ),
        _graph(
            "What that is",
            "short",
            (_gauge("seglog_backup_loss_records"), "records {{instance}}"),
            (_gauge("seglog_backup_loss_bytes"), "bytes {{instance}}"),
        ),
        _graph(
            "Continuous backup",
            "short",
            (
                f"{_rate('seglog_backup_written_bytes_total')} / {_rate('seglog_append_bytes_total')}",
                "bytes sent per byte appended {{instance}}",
            ),
            (_gauge("seglog_backup_held_up"), "held up {{instance}}"),
            (
                f"time() - ({_gauge('seglog_backup_published_timestamp_seconds')} > 0)",
                "seconds since the state it has {{instance}}",
            ),
        ),
        _graph(
            "What is wrong",
            "short",
            (_gauge("seglog_damaged_ranges"), "damaged ranges {{instance}}"),
            (_gauge("seglog_clock_untrusted"), "the clock leapt {{instance}}"),
            (_rate("seglog_log_lines_lost_total"), "lines of the log lost {{instance}}"),
        ),
    ),
    "Topics": (
        _by_topic("Records per second", "cps", _rate("seglog_partition_log_end_offset", _TOPIC)),
        _by_topic("Size", "bytes", f"seglog_partition_size_bytes{{{_TOPIC}}}"),
        _by_topic(
            "Records that can be read",
            "short",
            f"seglog_partition_log_end_offset{{{_TOPIC}}} - seglog_partition_log_start_offset{{{_TOPIC}}}",
        ),
        _by_topic("Segments", "short", f"seglog_partition_segments{{{_TOPIC}}}"),
        _graph(
            "Share that compaction has not been over",
            "percentunit",
            (f"topk(10, max by (topic) (seglog_partition_dirty_ratio{{{_TOPIC}}}))", "{{topic}}"),
        ),
        _by_topic(
            "Records past their retention on arrival", "cps", _rate("seglog_topic_expired_on_arrival_total", _TOPIC)
        ),
        _graph(
            "Topics and partitions",
            "short",
            (_gauge("seglog_topics"), "topics {{instance}}"),
            (f"sum by (instance) (seglog_partitions{{{_HERE}}})", "partitions {{instance}}"),
            (_gauge("seglog_topics_left_out"), "topics without metrics {{instance}}"),
            width=24,
        ),
    ),
    "Groups": (
        _graph("Lag in records", "short", _by_group("topk(10, sum", f"seglog_group_lag{{{_GROUP}}}")),
        _graph("Lag in time", "s", _by_group("topk(10, max", f"seglog_group_lag_seconds{{{_GROUP}}}")),
        _graph("Time to loss", "s", _by_group("bottomk(10, min", f"seglog_group_time_to_loss_seconds{{{_GROUP}}}")),
        _graph("Committed", "cps", _by_group("topk(10, sum", _rate("seglog_group_committed_offset", _GROUP))),
        _graph(
            "Members",
            "short",
            (f'seglog_group_members{{{_HERE}, group=~"$group"}}', "{{group}}"),
            (_gauge("seglog_groups_left_out"), "groups without metrics {{instance}}"),
        ),
        _graph("Rebalances", "ops", (_rate("seglog_group_rebalances_total", f'{_HERE}, group=~"$group"'), "{{group}}")),
        _table("States", "none", f'seglog_group_state{{{_HERE}, group=~"$group"}} == 1'),
    ),
    "Share groups": (
        _graph(
            "Records to be done",
            "short",
            _by_group("topk(10, sum", f"seglog_share_records_waiting{{{_GROUP}}}"),
            _by_group("topk(10, sum", f"seglog_share_records_in_flight{{{_GROUP}}}"),
        ),
        _graph(
            "Age of the oldest of them, and time to loss",
            "s",
            _by_group("topk(10, max", f"seglog_share_oldest_seconds{{{_GROUP}}}"),
            _by_group("bottomk(10, min", f"seglog_share_time_to_loss_seconds{{{_GROUP}}}"),
        ),
        _graph("Done", "cps", _by_group("topk(10, sum", _rate("seglog_share_accepted_total", _GROUP))),
        _graph(
            "Not done",
            "cps",
            *(
                (f"sum by (group) ({_rate(f'seglog_share_{what}_total', _GROUP)})", f"{what} {{{{group}}}}")
                for what in ("released", "rejected", "expired", "exceeded", "redelivered")
            ),
        ),
        _graph(
            "Most deliveries of a record",
            "short",
            _by_group("topk(10, max", f"seglog_share_deliveries_max{{{_GROUP}}}"),
        ),
        _graph(
            "Dead letters",
            "short",
            (f"sum by (group) (seglog_share_records_archiving{{{_GROUP}}})", "to be written {{group}}"),
            (_gauge("seglog_dead_letters_held_up"), "cannot be written {{instance}}"),
            (_rate("seglog_dead_letters_written_total"), "written per second {{instance}}"),
            (_rate("seglog_dead_letters_given_up_total"), "given up per second {{instance}}"),
        ),
        _graph(
            "Sessions and state",
            "short",
            (_gauge("seglog_share_sessions"), "sessions {{instance}}"),
            (_gauge("seglog_share_fetches_waiting"), "fetches that wait {{instance}}"),
            (_gauge("seglog_share_groups_left_out"), "groups without metrics {{instance}}"),
            (_rate("seglog_share_state_pruned_total"), "records of state pruned per second {{instance}}"),
            width=24,
        ),
    ),
    "Transactions": (
        _graph(
            "Transactions",
            "short",
            (_gauge("seglog_transactions_open"), "open {{instance}}"),
            (_gauge("seglog_transactional_ids"), "transactional ids {{instance}}"),
            (_gauge("seglog_partitions_held_back"), "partitions held back {{instance}}"),
        ),
        _graph("Age of the oldest", "s", (_gauge("seglog_transaction_oldest_seconds"), "{{instance}}")),
        _graph(
            "Transactions that ended",
            "ops",
            (f"sum by (outcome) ({_rate('seglog_transactions_ended_total')})", "{{outcome}}"),
        ),
        _graph(
            "What does not end",
            "short",
            (_gauge("seglog_transactions_hanging"), "hanging {{instance}}"),
            (_gauge("seglog_transactions_held_up"), "held up {{instance}}"),
            (_gauge("seglog_transaction_markers_waiting"), "markers to be written {{instance}}"),
            width=24,
        ),
    ),
    "Who comes in": (
        _graph(
            "Logins",
            "ops",
            (f"sum by (listener, mechanism) ({_rate('seglog_authentications_total')})", "{{listener}} {{mechanism}}"),
        ),
        _graph(
            "Logins that fail",
            "ops",
            (
                f"sum by (listener, mechanism) ({_rate('seglog_authentication_failures_total')})",
                "{{listener}} {{mechanism}}",
            ),
            (_rate("seglog_tls_handshakes_failed_total"), "TLS {{instance}}"),
        ),
        _graph("Refused for want of a right", "ops", (_rate("seglog_authorization_refusals_total"), "{{instance}}")),
        _graph(
            "Held back by quotas",
            "short",
            (f"sum by (quota) ({_rate('seglog_quota_throttles_total')})", "{{quota}} a second"),
            (f"sum by (quota) ({_rate('seglog_quota_throttle_seconds_total')})", "{{quota}}, seconds a second"),
            (_gauge("seglog_connections_muted"), "connections {{instance}}"),
        ),
        _graph(
            "The certificate ends in",
            "s",
            (f"{_gauge('seglog_certificate_expiry_timestamp_seconds')} - time()", "{{instance}}"),
            width=24,
        ),
    ),
}

VARIABLES: Final = {
    "job": "label_values(seglog_build_info, job)",
    "instance": 'label_values(seglog_build_info{job=~"$job"}, instance)',
    "topic": f"label_values(seglog_partition_size_bytes{{{_HERE}}}, topic)",
    "group": f"label_values(seglog_group_members{{{_HERE}}}, group)",
}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def main() -> int:
    """Write the file; the exit code."""
    FILE.write_text(written(), encoding="utf-8")
    return 0


def written() -> str:
    """The file's text: each panel on a line of its own."""
    whole = dashboard()
    panels = ",\n  ".join(json.dumps(panel) for panel in whole.pop("panels"))
    head = json.dumps(whole, indent=1).removesuffix("\n}")
    return f'{head},\n "panels": [\n  {panels}\n ]\n}}\n'


def dashboard() -> dict[str, Any]:
    """As Grafana has it, of schema 39: Grafana 10 and newer."""
    return {
        "uid": "seglog",
        "title": "seglog",
        "description": "A broker of seglog. docs/METRICS.md says what each metric means.",
        "tags": ["seglog"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source_variable(), *(_variable(*each) for each in VARIABLES.items())]},
        "panels": _placed(),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed() -> list[dict[str, Any]]:
    """All panels, from left to right and from the top down, below the title of their row."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        x, y, tallest = 0, y + 1, 0
        for panel in panels:
            height = _STAT_HEIGHT if panel.kind == "stat" else _GRAPH_HEIGHT
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            place = {"x": x, "y": y, "w": panel.width, "h": height}
            placed.append({"id": len(placed) + 1, **_panel(panel), "gridPos": place})
            x, tallest = x + panel.width, max(tallest, height)
        y += tallest
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any] = {}
    if panel.kind == "stat":
        defaults |= {"color": {"mode": "thresholds"}, "thresholds": _thresholds(panel)}
        options = {
            "colorMode": "none" if panel.warn is None else "background",
            "graphMode": "none",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
    elif panel.kind == "timeseries":
        defaults |= {"custom": {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": described(panel),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [_target(panel, number, query) for number, query in enumerate(panel.queries)],
    }


def _target(panel: Panel, number: int, query: Query) -> dict[str, Any]:
    now = panel.kind in {"stat", "table"}
    return {
        "refId": chr(ord("A") + number),
        "datasource": _SOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "format": "table" if panel.kind == "table" else "time_series",
        "instant": now,
        "range": not now,
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    below, above = ("red", "green") if panel.alarm_below else ("green", "red")
    steps: list[dict[str, Any]] = [{"color": below, "value": None}]
    if panel.warn is not None:
        steps.append({"color": above, "value": panel.warn})
    return {"mode": "absolute", "steps": steps}


def metrics(panel: Panel) -> list[str]:
    """The families that it shows."""
    text = " ".join(query.expression for query in panel.queries)
    found = [name.removesuffix("_bucket") for name in re.findall(r"\b(?:seglog|kafka)_\w+", text)]
    return list(dict.fromkeys(found))


def described(panel: Panel) -> str:
    """What its metrics mean."""
    return "\n\n".join(f"{name}: {FAMILIES_BY_NAME[name].help}" for name in metrics(panel))


if __name__ == "__main__":
    sys.exit(main())
