"""``seglog metrics``: the broker's metrics by name and pattern, in a table and as JSON that any reader takes."""

import json
import math
from collections.abc import Callable

import pytest

from seglog.cli.metrics import as_json, rows_of
from seglog.testing import Broker
from seglog_protocol.messages import MetricBuckets, MetricFamily, MetricSample
from tests.support import each_case
from tests.unit.clients.cli.conftest import Typed


def refused(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_all_are_shown_under_their_own_names(group_broker: Broker, typed: Typed) -> None:
    lines = typed("--server", group_broker.address, "metrics")[1].splitlines()
    assert lines[0].split() == ["NAME", "LABELS", "VALUE"]
    names = {line.split()[0] for line in lines[1:]}
    assert {"seglog_uptime_seconds", "seglog_disk_free_bytes", "seglog_build_info"} <= names


@each_case("name", ["seglog_open_files", "open_files", "open_file?", "*_open_files"])
def test_a_name_may_lack_its_prefix_or_be_a_pattern(group_broker: Broker, typed: Typed, name: str) -> None:
    families = json.loads(typed("--server", group_broker.address, "metrics", name, "--json")[1])
    assert "seglog_open_files" in [found["name"] for found in families]
    assert all("open_file" in found["name"] for found in families)
    (found,) = (found for found in families if found["name"] == "seglog_open_files")
    assert found["kind"] == "gauge"
    assert found["help"]
    assert isinstance(found["samples"][0]["value"], int)


def test_an_unknown_name_is_said_to_be_one(group_broker: Broker, typed: Typed) -> None:
    said = "seglog: the broker has no metric open_filse; did you mean open_files?\n"
    assert typed("--server", group_broker.address, "metrics", "open_filse") == (1, "", said)


def test_all_of_it_is_json_without_constants_that_json_lacks(group_broker: Broker, typed: Typed) -> None:
    families = json.loads(typed("--server", group_broker.address, "metrics", "--json")[1], parse_constant=refused)
    assert len(families) > 30
    values = {found["name"]: found["samples"] for found in families}
    assert values["seglog_retention_next_loss_seconds"][0]["value"] == "+Inf"
    assert {sample["labels"]["state"] for sample in values["seglog_partitions"]} >= {"serving", "offline"}


def family(value: float | MetricBuckets, name: str = "seglog_x") -> MetricFamily:
    return MetricFamily(name, "gauge", "", ["a", "b"], [MetricSample(["1", "2"], value)])


def shown(value: float | MetricBuckets, name: str = "seglog_x") -> str:
    ((_, labels, text),) = rows_of(family(value, name))
    assert labels == "a=1, b=2"
    return text


def test_values_are_shown_as_people_read_them() -> None:
    assert shown(1_234_567) == "1,234,567"
    assert shown(0.25) == "0.25"
    assert (shown(math.inf), shown(-math.inf), shown(math.nan)) == ("+Inf", "-Inf", "NaN")
    assert shown(0, "seglog_scrub_last_pass_timestamp_seconds") == "0"
    assert shown(1_700_000_000, "seglog_scrub_last_pass_timestamp_seconds") == "2023-11-14T22:13:20.000Z"
    assert shown(MetricBuckets([0.001, 0.01], [0, 4, 0], 0.02)) == "4: mean 5 ms, p50 5.5 ms, p99 9.91 ms"
    assert shown(MetricBuckets([0.001], [0, 0], 0.0)) == "0"


@pytest.mark.parametrize("check", [lambda wire: json.loads(json.dumps(wire, allow_nan=False))])
def test_a_histogram_is_json_with_its_buckets(check: Callable[..., dict[str, object]]) -> None:
    assert check(as_json(family(MetricBuckets([0.5], [1, 2], 3.0))))["samples"] == [
        {"labels": {"a": "1", "b": "2"}, "bounds": [0.5], "counts": [1, 2], "sum": 3.0, "count": 3}
    ]
