"""Print the table of the golden directories: ``python -m tests.interop.golden_table``.

Case by case how many partitions Kafka was asked about, how many records seglog reads in them, and whether it says what
Kafka says of where the logs begin and end (by partition), of the records (by partition) and of the offsets for times
(by question); then every difference that is meant to be, and where it shows. Writes nothing but that.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.golden import CASES, Case, adopted, batches_of, compare, dumped_batches, load_case, log_of, unpack
from tests.interop.golden_differences import DIFFERENCES


def table() -> Iterator[str]:
    """The lines, in Markdown."""
    yield "| case | partitions | records | start and end of the log | records | offsets for times |"
    yield "|---|---|---|---|---|---|"
    for name in CASES:
        yield _row(load_case(name))
    yield ""
    yield "| differs on purpose | where |"
    yield "|---|---|"
    places: dict[str, list[str]] = {}
    for case, partitions in DIFFERENCES.items():
        for partition, difference in partitions.items():
            places.setdefault(difference.why, []).append(f"`{case}`: `{partition}`")
    for why, where in places.items():
        yield f"| {why} | {', '.join(where)} |"


def _row(case: Case) -> str:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        unpack(case, directory)
        with adopted(directory) as logs:
            found = [compare(log_of(logs, name), answers) for name, answers in case.answered.items()]
            if not found:  # a killed broker was asked nothing; what it left was listed
                listed = [
                    batches_of(log_of(logs, name)) == dumped_batches(facts["disk"])
                    for name, facts in case.partitions.items()
                ]
                return _line(case, len(listed), "", "batches " + _equal(sum(listed), len(listed)), "", "")
    times = sum(len(one.times) for one in found)
    return _line(
        case,
        len(found),
        f"{sum(len(one.read.rows) for one in found):,}",
        _equal(sum(one.same_bounds for one in found), len(found)),
        _equal(sum(one.same_records for one in found), len(found)),
        _equal(times - sum(one.other_times for one in found), times),
    )


def _line(case: Case, *cells: object) -> str:
    return f"| `{case.name}` | {' | '.join(map(str, cells))} |"


def _equal(count: int, of: int) -> str:
    return f"equal ({of})" if count == of else f"{count} of {of} equal, others on purpose"


if __name__ == "__main__":
    try:
        for line in table():
            print(line)
    except pytest.skip.Exception as absent:
        sys.exit(str(absent))
