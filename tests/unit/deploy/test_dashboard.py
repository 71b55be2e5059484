"""The dashboard of Grafana as its script writes it: what it asks for exists, and nothing that exists is left out."""

import json
from itertools import combinations
from typing import Any

from scripts import grafana_dashboard
from seglog_broker.api.monitoring.families import FAMILIES, FAMILIES_BY_NAME, Kind
from tests.process.deploy.promql import check
from tests.support import each_case

PANELS = [panel for row in grafana_dashboard.ROWS.values() for panel in row]


def placed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(grafana_dashboard.FILE.read_text())["panels"]
    return found


def test_the_file_is_as_its_script_writes_it() -> None:
    assert grafana_dashboard.FILE.read_text() == grafana_dashboard.written(), "run scripts/grafana_dashboard.py"
    json.loads(grafana_dashboard.FILE.read_text())


@each_case("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_asks_for_metrics_and_labels_that_exist(panel: grafana_dashboard.Panel) -> None:
    for query in panel.queries:
        check(query.expression)
        labels = {part.split("}}")[0] for part in query.legend.split("{{")[1:]}
        known = {label for name in grafana_dashboard.metrics(panel) for label in _labels(name)}
        assert labels <= {"instance", *known}


def _labels(name: str) -> tuple[str, ...]:
    return FAMILIES_BY_NAME[name].labels


@each_case("panel", PANELS, ids=lambda panel: panel.title)
def test_a_counter_is_shown_by_its_rate_and_a_histogram_by_its_quantiles(panel: grafana_dashboard.Panel) -> None:
    few = {"seglog_scrub_passes_total", "seglog_scrub_findings_total"}  # counts to read as they are
    for query in panel.queries:
        for name in grafana_dashboard.metrics(panel._replace(queries=(query,))):
            kind = FAMILIES_BY_NAME[name].kind
            if kind is Kind.COUNTER and name not in few:
                assert f"rate({name}" in query.expression
            if kind is Kind.HISTOGRAM:
                assert query.expression.startswith("histogram_quantile(")


def test_every_metric_is_shown() -> None:
    shown = {name for panel in PANELS for name in grafana_dashboard.metrics(panel)}
    assert {family.name for family in FAMILIES} <= shown


def test_no_panel_lies_over_another_or_beyond_the_page() -> None:
    rectangles = [panel["gridPos"] for panel in placed()]
    for one in rectangles:
        assert 0 <= one["x"] < one["x"] + one["w"] <= grafana_dashboard.WIDTH
    for one, other in combinations(rectangles, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    assert len({panel["id"] for panel in placed()}) == len(rectangles)


def test_titles_are_told_apart_within_a_row() -> None:
    for row in grafana_dashboard.ROWS.values():
        assert len({panel.title for panel in row}) == len(row)
