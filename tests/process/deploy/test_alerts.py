"""The alert rules: checked and tested by promtool, and each held against the metrics and commands that it names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from seglog.cli.dispatch import parse
from seglog_broker.api.monitoring.samples import Sample
from tests.process.deploy.prometheus import promtool
from tests.process.deploy.promql import check
from tests.support import REPOSITORY, each_case
from tests.unit.broker.brokers import open_broker
from tests.unit.test_bounds_document import names_of_tests

RULES = REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"
KAFKA_EXPORTER_RULES = RULES.with_name("kafka_exporter.yaml")
TESTS = Path(__file__).with_name("alerts.test.yaml")


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def alerts() -> list[Any]:
    return [pytest.param(rule, id=rule["alert"]) for rule in rules()]


def cases() -> list[dict[str, Any]]:
    """The unit tests of promtool."""
    found: list[dict[str, Any]] = yaml.safe_load(TESTS.read_text())["tests"]
    return found


def fired(case: dict[str, Any]) -> Iterator[set[str]]:
    """The alerts that fire at each moment that a unit test looks at."""
    for look in case["promql_expr_test"]:
        yield {name for sample in look["exp_samples"] for name in re.findall(r'alertname="(\w+)"', sample["labels"])}


@pytest.mark.soak
def test_promtool_takes_every_rule() -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES, KAFKA_EXPORTER_RULES)
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(list(rules()))} rules found" in said.stdout


@pytest.mark.soak
def test_every_alert_fires_and_resolves_as_its_unit_test_says() -> None:
    said = promtool("test", "rules", TESTS)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.soak
def test_every_annotation_can_be_expanded(tmp_path: Path) -> None:
    """Promtool shows what an alert says when nothing of it is expected."""
    for case in cases():
        case["alert_rule_test"] = [
            {"alertname": name, "eval_time": look["eval_time"], "exp_alerts": []}
            for look, names in zip(case["promql_expr_test"], fired(case), strict=True)
            for name in names
        ]
        del case["promql_expr_test"]
        file = tmp_path / "shown.yaml"
        file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
        said = promtool("test", "rules", file)
        shown = said.stdout + said.stderr
        assert all(f"alertname: {alert['alertname']}," in shown for alert in case["alert_rule_test"]), shown
        assert "error expanding" not in shown
        assert "<no value>" not in shown
        assert "{{" not in shown


def test_the_advice_of_every_alert_is_followed_by_a_test_or_is_to_look() -> None:
    followed: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("advices.yaml").read_text())
    assert list(followed) == [rule["alert"] for rule in rules()]
    assert {test for tests in followed.values() for test in tests} <= names_of_tests()


@each_case("rule", alerts())
def test_an_alert_has_a_unit_test_in_which_it_fires_and_one_moment_later_in_it_does_not(rule: dict[str, Any]) -> None:
    """What fires in the last look of a test could be one that never resolves."""
    looks = [list(fired(case)) for case in cases()]
    assert any(rule["alert"] in names for case in looks for names in case)
    assert not any(rule["alert"] in case[-1] for case in looks)
    assert not any(rule["alert"] in case[0] for case in looks)


@each_case("rule", alerts())
def test_an_alert_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    made = {*re.findall(r'label_replace\([^,]*, "(\w+)"', rule["expr"])}
    if "seglog_" in rule["expr"] or "kafka_" in rule["expr"]:
        check(rule["expr"], made)
    else:
        assert rule["expr"].startswith("up{")


async def test_what_alerts_count_by_a_label_is_there_from_zero_on() -> None:
    """Prometheus sees no increase in a series that begins with its first count."""
    watched = [
        (match[1], match[2])
        for rule in rules()
        for match in re.finditer(r'increase\((\w+)\{\w+="(\w+)"\}', rule["expr"])
    ]
    assert watched
    broker = open_broker()
    for name, label in watched:
        samples = [sample for piece in broker.monitoring.slices([name]) for sample in piece.samples]
        assert Sample((label,), 0) in samples
    broker.close()


@each_case("rule", alerts())
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "action"}
    for text in rule["annotations"].values():
        assert text.endswith((".", "?"))
        for command in re.findall(r"`seglog ([^`]*)`", text):
            words = re.sub(r"\{\{ [$]labels[.](\w+) \}\}", r"\1", command).split()
            parse(words if len(words) != 2 or words[0] != "group" else [*words, "some"])
