"""docs/PYTHON.md: its table has the frameworks that a test runs, in the versions that it installs."""

import re

from tests.interop.client_programs import CLIENTS, FRAMEWORKS
from tests.interop.test_copiers import COUNTING, STATELESS
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "PYTHON.md").read_text(encoding="utf-8")


def test_the_table_has_the_frameworks_of_the_tests_in_their_versions() -> None:
    pins = {name: (CLIENTS / f"requirements-{name}.txt").read_text(encoding="utf-8").split() for name in FRAMEWORKS}
    rows = re.findall(r"^\| ([^|]+) \| (\S+ \d[\d.]*(?:, \S+ \d[\d.]*)*) \|", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == sorted({copier.name for copier in (*STATELESS, *COUNTING)}, key=str.lower)
    shown = set()
    for _, versions in rows:
        wanted = {version.replace(" ", "==") for version in versions.split(", ")}
        installed_together = {name for name, there in pins.items() if wanted <= set(there)}
        assert installed_together, versions
        shown |= installed_together
    assert shown == set(FRAMEWORKS)
