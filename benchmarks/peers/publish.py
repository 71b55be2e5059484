"""The table of benchmarks/README.md from the results of a run: ``python -m benchmarks.peers.publish RESULTS.json``.

The table stands in benchmarks/README.md between two comments, and is replaced whole.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import REPOSITORY
from benchmarks.peers.cases import OURS
from benchmarks.peers.results import KAFKA, PeerRow, Results, from_json
from benchmarks.table import machine_line, number

BEGIN: Final = "<!-- from here to the next comment written by benchmarks.peers.publish -->"
END: Final = "<!-- so far -->"
_WIDTH: Final = 120
_SHORT: Final = {side: side.removeprefix("seglog, ") for side in OURS}


def table(results: Results) -> str:
    """Each case a line: Kafka's figure, and how many times as fast each side of ours is, and each other peer."""
    rows = results.beside_kafka()
    sides = [side for side in (*OURS, *results.versions) if side != KAFKA and any(row.values(side) for row in rows)]
    titles = ["", f"Kafka {results.versions[KAFKA].split()[0]}", *(_SHORT.get(side, side) for side in sides)]
    lines = [_line(titles), _line(["---", *["---:"] * (len(titles) - 1)])]
    lines += [_line([row.name, f"{number(row.median(KAFKA))} {row.unit}", *_ratios(row, sides)]) for row in rows]
    return "\n".join(lines)


def _ratios(row: PeerRow, sides: Sequence[str]) -> list[str]:
    return [
        "" if (ratio := row.ratio(side)) is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}" for side in sides
    ]


def _line(cells: Sequence[str]) -> str:
    return "|".join(["", *(f" {cell} " if cell else " " for cell in cells), ""])


def words(results: Results) -> str:
    """What was measured, and where."""
    facts = results.facts
    said = "; ".join(f"{name}: {version}" for name, version in results.versions.items())
    machine = "; ".join(line.rstrip(".") for line in machine_line(facts).splitlines())
    return textwrap.fill(f"{facts['time'][:10]}. {said}. {machine}.", _WIDTH, break_on_hyphens=False)


def published(readme: str, results: Results) -> str:
    """The page with the table of these results. ValueError where the comments are missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{words(results)}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.publish", description=__doc__)
    parser.add_argument("results", type=Path, help="what --json of a run with --peers wrote")
    parser.add_argument("--readme", type=Path, default=REPOSITORY / "benchmarks" / "README.md")
    options = parser.parse_args(arguments)
    results = from_json(json.loads(options.results.read_text()))
    if not results.beside_kafka():
        parser.error("nothing was measured beside Kafka")
    options.readme.write_text(published(options.readme.read_text(), results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
