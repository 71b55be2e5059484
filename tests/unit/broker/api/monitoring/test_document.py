"""docs/METRICS.md is what the table of families makes."""

import re

from seglog_broker.api.monitoring.document import page
from seglog_broker.api.monitoring.families import FAMILIES, Kind
from tests.support import REPOSITORY


def test_the_page_is_that_of_the_table() -> None:
    written = (REPOSITORY / "docs" / "METRICS.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m seglog_broker.api.monitoring > docs/METRICS.md"


def test_names_are_as_prometheus_wants_them() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"(seglog|kafka)_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER), family.name
        assert not family.name.endswith(("_count", "_sum", "_bucket", "_created", "_ms"))
