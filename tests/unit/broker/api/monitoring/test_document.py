"""The page METRICS.md has every family of the table, and names are as Prometheus wants them."""

import re

from seglog_broker.api.monitoring.document import page
from seglog_broker.api.monitoring.families import FAMILIES, Kind


def test_every_family_stands_on_the_page_once_with_its_kind_and_its_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram|info) \| .*?\| (.+) \|$", page(), re.MULTILINE)
    assert sorted(rows) == sorted((family.name, family.kind.value, family.help) for family in FAMILIES)


def test_names_are_as_prometheus_wants_them() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"(seglog|kafka)_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER), family.name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_created", "_ms"))
