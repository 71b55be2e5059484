"""What Kafka compacted, compacted once more by seglog: nothing changes for whoever reads it."""

import shutil
from pathlib import Path

import pytest

from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol import segment_files as names
from tests.cleaning import Log
from tests.interop.golden import INDEX_INTERVAL, load_case, unpack

_NEVER = 1 << 60  # milliseconds


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("compacted")
    unpack(load_case("compacted"), directory)
    return directory


def _cleaned_by_kafka(directory: Path) -> dict[str, int]:
    """The first dirty offset of each partition, as Kafka left it."""
    lines = (directory / "cleaner-offset-checkpoint").read_text(encoding="utf-8").splitlines()[2:]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, lines)}


def test_what_kafka_cleaned_reads_the_same_after_we_cleaned_it_again(unpacked: Path, tmp_path: Path) -> None:
    cleaned = {name: offset for name, offset in _cleaned_by_kafka(unpacked).items() if offset}
    assert len(cleaned) > 3
    some_were_merged = False
    for name, first_dirty in cleaned.items():
        shutil.copytree(unpacked / name, tmp_path / name)
        log = Log(PosixFileSystem(), str(tmp_path / name))
        found = (names.parse_segment_file_name(path.name) for path in (tmp_path / name).iterdir())
        log.bases = sorted(base for base, suffix in filter(None, found) if suffix == names.LOG_SUFFIX)
        upper_bound = max((base for base in log.bases if base <= first_dirty), default=0)
        if upper_bound == log.bases[0]:
            continue
        before, batches = log.records(), log.batches()
        # Long before any horizon: a tombstone that Kafka still shows must stay.
        result = log.clean(
            upper_bound=upper_bound,
            now_ms=0,
            delete_retention_ms=_NEVER,
            producer_id_expiration_ms=_NEVER,
            index_interval_bytes=INDEX_INTERVAL,
        )
        assert log.records() == before, name
        assert {header for header, _ in log.batches()} <= {header for header, _ in batches}, name
        assert sum(loss.records for loss in result.losses) == 0
        some_were_merged |= any(len(group.sources) > 1 for group in result.groups)
    assert some_were_merged
