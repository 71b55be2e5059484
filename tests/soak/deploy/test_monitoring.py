"""A real Prometheus scrapes a daemon that works: every metric, every panel, the usual dashboard, and alerts."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import grafana_dashboard
from seglog_broker.api.monitoring.families import FAMILIES, Kind
from tests.process.deploy.prometheus import Prometheus, prometheus
from tests.process.deploy.test_alerts import KAFKA_EXPORTER_RULES, RULES
from tests.process.deploy.workload import (
    DEAD,
    KEYED,
    LIVE,
    OVER_KAFKA,
    PARTITIONS,
    SETTINGS,
    VISITS,
    Workload,
    damage,
    working,
)
from tests.process.faults.secured_daemon import Secured, secured
from tests.processes import wait_until
from tests.support import soak_share

JOB = "seglog"
RATE_INTERVAL = "10s"
"""Of rates, in place of the four scrapes of a quarter of a minute that Grafana takes."""
SPEED = 30
"""The minutes of alert rules go by so many times as fast."""


def job(at: Secured) -> dict[str, Any]:
    return {"job_name": JOB, "static_configs": [{"targets": [f"127.0.0.1:{at.running.http_port}"]}]}


@dataclass(frozen=True)
class Watched:
    """A broker at work, and the Prometheus that scrapes it each second."""

    secured: Secured
    workload: Workload
    server: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with (
        secured(folder / "broker", *SETTINGS, protocol="PLAINTEXT", under=()) as at,
        prometheus(folder / "prometheus", [job(at)], rules=[KAFKA_EXPORTER_RULES]) as server,
        working(at) as workload,
    ):
        server.wait_for_scrapes(JOB, 12)
        yield Watched(at, workload, server)


# --- Everything is seen -----------------------------------------------------------------------------------------------


def test_every_documented_metric_is_scraped(watched: Watched) -> None:
    def absent() -> list[str]:
        suffixes = {Kind.HISTOGRAM: "_bucket"}
        names = {family.name: family.name + suffixes.get(family.kind, "") for family in FAMILIES}
        return [name for name, stored in names.items() if not watched.server.instant(f'{stored}{{job="{JOB}"}}')]

    try:
        wait_until(lambda: not absent(), "every metric")
    except AssertionError:
        raise AssertionError(absent()) from None


# --- Dashboards -------------------------------------------------------------------------------------------------------


def asked(expression: str, watched: Watched) -> str:
    """An expression as Grafana asks it, with everything chosen."""
    instance = f"127.0.0.1:{watched.secured.running.http_port}"
    variables = {"job": JOB, "instance": chosen_of([instance]), "topic": ".*", "group": ".*"}
    for name, value in (variables | {"__rate_interval": RATE_INTERVAL}).items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression
    return expression


def chosen_of(values: Sequence[str]) -> str:
    """Some values of a variable, as Grafana writes them into a regular expression."""
    return "|".join(re.escape(value).replace("\\", "\\\\") for value in values)


def test_no_panel_of_the_dashboard_is_empty(watched: Watched) -> None:
    panels = [panel for row in grafana_dashboard.ROWS.values() for panel in row]
    queries = [(panel.title, query.expression) for panel in panels for query in panel.queries]

    def empty() -> list[tuple[str, str]]:
        return [each for each in queries if not has_numbers(watched.server, asked(each[1], watched))]

    try:
        wait_until(lambda: not empty(), "every panel")
    except AssertionError:
        raise AssertionError(empty()) from None


def has_numbers(server: Prometheus, expression: str) -> bool:
    """Whether there is a series with a value: a quantile of nothing is none."""
    return any(not math.isnan(series.value) for series in server.instant(expression))


def test_the_variables_of_the_dashboard_have_values(watched: Watched) -> None:
    for name, query in grafana_dashboard.VARIABLES.items():
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found is not None
        values = watched.server.label_values(found[2], asked(found[1], watched))
        assert values, name


KAFKA_EXPORTER_OVERVIEW = {
    "Message in per second": (
        'sum(rate(kafka_topic_partition_current_offset{instance="$instance", topic=~"$topic"}[1m])) by (topic)'
    ),
    "Lag by Consumer Group": (
        'sum(kafka_consumergroup_lag{instance="$instance",topic=~"$topic"}) by (consumergroup, topic)'
    ),
    "Message in per minute": (
        "sum(delta(kafka_topic_partition_current_offset{instance=~'$instance', topic=~\"$topic\"}[5m])/5) by (topic)"
    ),
    "Message consume per minute": (
        "sum(delta(kafka_consumergroup_current_offset{instance=~'$instance',topic=~\"$topic\"}[5m])/5) "
        "by (consumergroup, topic)"
    ),
    "Partitions per Topic": 'sum by(topic) (kafka_topic_partitions{instance="$instance",topic=~"$topic"})',
}
"""The panels of the dashboard "Kafka Exporter Overview", number 7589 of Grafana's."""

KAFKA_EXPORTER_VARIABLES = {
    "job": ("kafka_consumergroup_current_offset", "job"),
    "instance": ('kafka_consumergroup_current_offset{job=~"$job"}', "instance"),
    "topic": (
        "kafka_topic_partition_current_offset{instance='$instance',topic!='__consumer_offsets',topic!='--kafka'}",
        "topic",
    ),
}


def test_the_usual_dashboard_for_kafka_exporter_shows_topics_and_lag_unmodified(watched: Watched) -> None:
    server = watched.server
    chosen = {"job": "", "instance": "", "topic": ""}

    def filled(expression: str) -> str:
        for name, value in chosen.items():
            expression = expression.replace(f"${name}", value)
        return expression

    for name, (selector, label) in KAFKA_EXPORTER_VARIABLES.items():
        values = server.label_values(label, filled(selector))
        assert values, name
        chosen[name] = chosen_of(values) if name == "topic" else values[0]
    assert chosen["job"] == JOB
    shown = {title: server.instant(filled(query)) for title, query in KAFKA_EXPORTER_OVERVIEW.items()}
    by_topic = {
        title: {
            series.labels["topic"]: series.value for series in found if series.labels.get("consumergroup", DEAD) == DEAD
        }
        for title, found in shown.items()
    }
    assert 0 < by_topic["Message in per second"][VISITS] < 1000
    assert by_topic["Message in per minute"][VISITS] > 0
    assert by_topic["Lag by Consumer Group"][VISITS] > 0
    assert by_topic["Message consume per minute"][VISITS] == 0  # it is dead
    assert (
        by_topic["Partitions per Topic"] | {VISITS: PARTITIONS, OVER_KAFKA: 2, KEYED: 1}
        == by_topic["Partitions per Topic"]
    )


# --- Alerts -----------------------------------------------------------------------------------------------------------


def faster_rules(folder: Path) -> Path:
    """The alert rules, whose minutes take two seconds. What they compare with stays: bytes, shares, hours to come.

    That the broker is down stays slow: on a busy machine some scrapes in a row may come late.
    """
    text = yaml.safe_load(RULES.read_text())
    for group in text["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[(\d+)([mhd])\]", lambda found: f"[{_fewer(found[1], found[2])}]", rule["expr"])
            if "for" in rule and rule["alert"] != "SeglogDown":
                rule["for"] = _fewer(rule["for"][:-1], rule["for"][-1])
    path = folder / "alerts.yaml"
    path.write_text(yaml.safe_dump(text))
    return path


def _fewer(number: str, unit: str) -> str:
    seconds = int(number) * {"m": 60, "h": 3600, "d": 86_400}[unit]
    return f"{max(5, seconds // SPEED)}s"


def wait_for_alert(server: Prometheus, name: str, *, fires: bool, **labels: str) -> dict[str, Any]:
    """Until an alert fires, which is returned, or fires no more."""
    found: list[dict[str, Any]] = []

    def is_so() -> bool:
        found[:] = [alert for alert in server.alerts().get(name, []) if labels.items() <= alert["labels"].items()]
        return bool(found) is fires

    wait_until(is_so, f"{name} {'to fire' if fires else 'to resolve'}")
    return found[0] if fires else {}


def test_alerts_fire_for_a_dead_group_and_for_damage_and_resolve(tmp_path: Path) -> None:
    """For ten minutes, in full, the broker is well before that, and nothing but what is wrong fires."""
    with (
        secured(tmp_path / "broker", *SETTINGS, protocol="PLAINTEXT", under=()) as at,
        prometheus(tmp_path / "prometheus", [job(at)], rules=[faster_rules(tmp_path)]) as server,
        working(at) as workload,
    ):
        server.wait_for_scrapes(JOB, 20)
        _stay_well(server, 600 * soak_share() - 120)
        _let_a_group_die(server, workload)
        _damage(server, at)
        assert workload.end()["records"] > 0
        assert workload.churned
        assert server.value(f'count({{job="{JOB}"}})') < 4000, "topics that went are shown no more"


EXPECTED = {
    *("SeglogGroupDead", "SeglogGroupFallsBehind"),  # a dead group
    "SeglogExpiredOnArrival",  # records that come late
    *("SeglogDiskFullInHours", "SeglogDiskFullInADay"),  # a disk that others write to as well
    *("SeglogLoginsFail", "SeglogRequestErrors"),  # wrong passwords, which their client tries several times, and topics
}
"""What the work has fire all the time."""


def _stay_well(server: Prometheus, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        unexpected = [alerts for name, alerts in server.alerts().items() if name not in EXPECTED]
        assert not unexpected, (unexpected, server.targets())
        time.sleep(1)


def _let_a_group_die(server: Prometheus, workload: Workload) -> None:
    wait_for_alert(server, "SeglogGroupDead", fires=True, group=DEAD)
    wait_for_alert(server, "SeglogGroupDead", fires=False, group=LIVE)
    workload.stop_group()
    fired = wait_for_alert(server, "SeglogGroupDead", fires=True, group=LIVE)
    assert VISITS in fired["annotations"]["summary"]
    workload.start_group()
    wait_for_alert(server, "SeglogGroupDead", fires=False, group=LIVE)


def _damage(server: Prometheus, at: Secured) -> None:
    assert "SeglogDamage" not in server.alerts()
    with at.connect() as client:
        client.create_topic("hurt", 1, config={"segment.bytes": 1024})
        with client.producer("hurt") as producer:
            for number in range(40):
                producer.send(b"%d" % number * 50)
                producer.flush()
        damage(at.running, "hurt")
        fired = wait_for_alert(server, "SeglogDamage", fires=True)
        assert "error" not in fired["annotations"]["summary"]
        wait_for_alert(server, "SeglogScrubFindings", fires=True)
        wait_for_alert(server, "SeglogProblems", fires=True)
        client.delete_topic("hurt")
    wait_for_alert(server, "SeglogDamage", fires=False)
