"""Directories that Apache Kafka 4.3.1 wrote: those after a clean stop are sound, and damage in the others is found."""

from pathlib import Path

import pytest

from seglog_broker.config import load_config
from seglog_broker.inspect.check.directory import CheckOptions, check_directory
from seglog_broker.inspect.findings import Code, Finding, Report, Severity, Totals
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.interop.golden import CASES, MOST_CASES, adopted, load_case, log_of, read_everything, unpack
from tests.unit.kafka.test_kafka_golden import STOPPED

Row = tuple[str, Code, str]
"""Partition, what, and the file; of a segment's files the base offset and suffix."""

_EITHER_START: dict[Row, Severity] = {
    **{
        ("empty-indexes-0", Code.INDEX_WRONG, f"{base}{suffix}"): Severity.DERIVED
        for base in (0, 48, 84, 126, 174)
        for suffix in (".index", ".timeindex")
    },
    ("index-ahead-0", Code.INDEX_WRONG, "210.index"): Severity.DERIVED,
    ("index-garbage-0", Code.INDEX_WRONG, "126.index"): Severity.DERIVED,
    ("index-odd-length-0", Code.INDEX_WRONG, "126.index"): Severity.DERIVED,
    ("index-zero-filled-0", Code.INDEX_WRONG, "126.index"): Severity.DERIVED,
    ("last-log-gone-0", Code.LOG_TOO_SHORT, ""): Severity.DAMAGE,
    ("log-emptied-0", Code.LOG_TOO_SHORT, ""): Severity.DAMAGE,
    ("log-emptied-0", Code.INDEX_WRONG, "210.index"): Severity.DERIVED,
    ("log-emptied-0", Code.INDEX_WRONG, "210.timeindex"): Severity.DERIVED,
    ("no-index-0", Code.INDEX_MISSING, "126.index"): Severity.DERIVED,
    **{
        ("no-indexes-0", Code.INDEX_MISSING, f"{base}{suffix}"): Severity.DERIVED
        for base in (0, 48, 84, 126, 174)
        for suffix in (".index", ".timeindex")
    },
    ("no-timeindex-0", Code.INDEX_MISSING, "126.timeindex"): Severity.DERIVED,
    ("snapshot-garbage-0", Code.SNAPSHOT_WRONG, "240.snapshot"): Severity.DERIVED,
    ("stray-files-0", Code.SNAPSHOT_WRONG, "7.snapshot"): Severity.DERIVED,
    ("timeindex-garbage-0", Code.INDEX_WRONG, "126.timeindex"): Severity.DERIVED,
    ("timeindex-odd-length-0", Code.INDEX_WRONG, "126.timeindex"): Severity.DERIVED,
    # Compaction would leave such a gap, too, but the cleaner's checkpoint does not speak of this partition.
    ("middle-segment-gone-0", Code.OFFSETS_MISSING, "174.log"): Severity.DAMAGE,
}
_UNCLEAN: dict[Row, Severity] = {
    ("flip-first-batch-0", Code.BATCH_DAMAGED, "352.log"): Severity.DAMAGE,
    ("flip-in-closed-0", Code.BATCH_DAMAGED, "192.log"): Severity.DAMAGE,
    **{
        (f"{name}-0", Code.TORN_TAIL, file): Severity.NOTE
        for name, file in (
            ("cut-in-body", "328.log"),
            ("cut-in-header", "352.log"),
            ("cut-last-byte", "352.log"),
            ("flip-in-active", "352.log"),
            ("garbage-tail", "352.log"),
            ("preallocated", "352.log"),
            ("short-zero-tail", "352.log"),
            ("zero-tail", "288.log"),
        )
    },
    # The log was cut before an entry that was there: the index knows a batch that is gone.
    ("cut-in-body-0", Code.INDEX_WRONG, "328.index"): Severity.DERIVED,
    ("cut-in-body-0", Code.INDEX_WRONG, "328.timeindex"): Severity.DERIVED,
}
FOUND: dict[str, dict[Row, Severity]] = {
    "unclean": {("preallocated-0", Code.TORN_TAIL, "352.log"): Severity.NOTE},
    "unclean-recovered": _UNCLEAN,
    "unclean-recovered-from-zero": _UNCLEAN,
    "damaged-clean-start": {
        **_EITHER_START,
        ("empty-indexes-0", Code.INDEX_WRONG, "210.index"): Severity.DERIVED,
        ("empty-indexes-0", Code.INDEX_WRONG, "210.timeindex"): Severity.DERIVED,
        ("first-segment-gone-0", Code.FIRST_SEGMENT_GONE, ""): Severity.DAMAGE,
        ("index-zero-filled-0", Code.INDEX_WRONG, "210.index"): Severity.DERIVED,
        **{
            (name, Code.INDEX_MISSING, f"210{suffix}"): Severity.DERIVED
            for name in ("no-active-indexes-0", "no-indexes-0")
            for suffix in (".index", ".timeindex")
        },
    },
    "damaged-unclean-start": {
        ("last-log-gone-0", Code.SEGMENTS_GONE, "210.log"): Severity.DAMAGE,
        ("stray-files-0", Code.SEGMENTS_GONE, "9999.log"): Severity.DAMAGE,
        **_EITHER_START,
        ("first-segment-gone-0", Code.FIRST_SEGMENT_GONE, ""): Severity.NOTE,
    },
}
"""All that is found where something was done to a directory, but for the notes listed below."""

_EXPECTED_NOTES = {
    Code.REGISTRY_MISSING,
    Code.LEFT_OVER,
    Code.INDEX_PADDING,
    Code.INDEX_MISSING,
    Code.EPOCHS_EMPTY,
    Code.UNKNOWN_FILE,
    Code.CHECKPOINT_BEYOND_END,
}


def checked(directory: Path, *, repair: bool = False, interval: int = 512) -> list[Report]:
    config, _ = load_config(None, "", {}, [f"log.index.interval.bytes={interval}"])
    return list(check_directory(PosixFileSystem(), str(directory), config, CheckOptions(deep=True, repair=repair)))


def rows(told: list[Report], directory: Path) -> dict[Row, Severity]:
    """The findings that are not expected notes."""
    found = {}
    for finding in told:
        if not isinstance(finding, Finding):
            continue
        if finding.severity == Severity.NOTE and finding.code in _EXPECTED_NOTES:
            continue
        partition, _, file = str(Path(finding.path).relative_to(directory)).partition("/")
        stem, dot, suffix = file.partition(".")
        found[partition, finding.code, f"{int(stem)}{dot}{suffix}" if stem.isdigit() else file] = finding.severity
    return found


@MOST_CASES
def test_exactly_the_damage_that_was_done_is_found(name: str, tmp_path: Path) -> None:
    unpack(load_case(name), tmp_path)
    assert rows(checked(tmp_path), tmp_path) == FOUND.get(name, {})


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("interval", [0, 4096, 1 << 20])
def test_a_directory_left_in_order_is_sound_whatever_interval_its_broker_is_to_have(
    name: str, interval: int, tmp_path: Path
) -> None:
    unpack(load_case(name), tmp_path)
    assert rows(checked(tmp_path, interval=interval), tmp_path) == {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if at % 4 else name for at, name in enumerate(CASES)]
)
def test_a_repaired_directory_is_sound_and_holds_the_same_records(name: str, tmp_path: Path) -> None:
    case = load_case(name)
    as_it_was, repaired = tmp_path / "as-it-was", tmp_path / "repaired"
    for directory in (as_it_was, repaired):
        directory.mkdir()
        unpack(case, directory)
    checked(repaired, repair=True)
    before = {path: path.read_bytes() for path in repaired.rglob("*") if path.is_file()}
    told = checked(repaired, repair=True)
    assert isinstance(told[-1], Totals)
    assert (told[-1].is_sound, told[-1].repairs) == (True, 0)
    assert {path: path.read_bytes() for path in repaired.rglob("*") if path.is_file()} == before
    with adopted(as_it_was) as theirs, adopted(repaired) as ours:
        assert not ours.report.offline
        for partition in case.partitions:
            assert read_everything(log_of(ours, partition)) == read_everything(log_of(theirs, partition)), partition
