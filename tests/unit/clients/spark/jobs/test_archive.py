"""Archives without Spark: what is planned, and what is left when a run is killed at any step."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from seglog.cli.exits import InputError
from seglog.core.records import ConsumerGap
from seglog_protocol.messages import TopicDescription
from seglog_spark.jobs import archive as archive_module
from seglog_spark.jobs import manifest as manifest_module
from seglog_spark.jobs.archive import ArchiveTask, Plan, archive, check_same
from seglog_spark.jobs.by_date import BEGUN
from seglog_spark.jobs.manifest import FileGap, Layout, Manifest, load, sweep
from seglog_spark.offsets import OffsetRange
from seglog_spark.planning import DataLossError
from tests.spark.fake_log import RECORD_BYTES, FakeLog, log, tp
from tests.spark.jobs.records import DAY_US, batches, timed

PLAN = Plan("localhost", "a", 10 * RECORD_BYTES)
TOPIC = TopicDescription("a", "id", partitions=2, max_message_bytes=1 << 20, segment_bytes=1 << 30)


class FakeReader:
    """In place of RangeReader."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def read(self, r: OffsetRange) -> Iterator[pa.RecordBatch]:
        return timed(batches(r), lambda offset: None if offset % 9 == 4 else offset * 5 % 4 * DAY_US)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveTask:
    monkeypatch.setattr(archive_module, "RangeReader", FakeReader)
    return ArchiveTask("localhost", tmp_path, "none", durable_only=False, accept_loss=False)


def in_archive(folder: Path) -> list[tuple[int, int]]:
    """(partition, offset) of all rows, as any engine reads a folder of Parquet files."""
    found = ds.dataset(folder, format="parquet").to_table(columns=["partition", "offset"]).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in found)


def files_in(folder: Path) -> list[Path]:
    """All below it but the manifest, and the name of the folder itself."""
    return [path for path in folder.glob("*/**/*") if path.is_file()]


def in_log(source: FakeLog) -> list[tuple[int, int]]:
    return sorted((p.partition, offset) for p, end in source.latest.items() for offset in range(end))


def test_a_plan_covers_what_the_archive_lacks_once() -> None:
    source = log(a_0=25, a_1=4)
    empty = Manifest("a", "id").with_partitions({0: 0, 1: 0})
    ranges = PLAN.next_ranges(source, empty)
    assert ranges == [
        OffsetRange("a", 0, 0, 8),
        OffsetRange("a", 0, 8, 16),
        OffsetRange("a", 0, 16, 25),
        OffsetRange("a", 1, 0, 4),
    ]
    there = Manifest("a", "id", partitions={0: (0, 25)}).with_partitions({0: 0, 1: 0})
    assert PLAN.next_ranges(source, there) == [OffsetRange("a", 1, 0, 4)]
    assert PLAN.next_ranges(source, Manifest("a", "id", partitions={0: (0, 25), 1: (0, 4)})) == []
    assert PLAN.next_ranges(FakeLog({tp("a-0"): 9}, {tp("a-0"): 9}), Manifest("a", "id").with_partitions({0: 9})) == []


def test_what_expired_before_it_was_archived_is_an_error_or_a_gap_of_the_first_file() -> None:
    source = FakeLog({tp("a-0"): 25}, {tp("a-0"): 12})
    there = Manifest("a", "id", partitions={0: (0, 5)})
    with pytest.raises(DataLossError, match="from 5 to 25 cannot all be read: the log begins at 12"):
        PLAN.next_ranges(source, there)
    accepting = Plan("localhost", "a", 10 * RECORD_BYTES, accept_loss=True)
    assert accepting.next_ranges(source, there) == [OffsetRange("a", 0, 5, 18), OffsetRange("a", 0, 18, 25)]
    # A topic that begins late is none that has lost something.
    assert PLAN.next_ranges(source, Manifest("a", "id").with_partitions({0: 12}))[0].start == 12


def test_an_archive_of_another_topic_is_left_alone(tmp_path: Path) -> None:
    source = log(a_0=25)
    check_same(Manifest("a", "id", partitions={0: (0, 25)}), TOPIC, source, tmp_path)
    with pytest.raises(InputError, match="holds the archive of b; an archive of a needs a folder of its own"):
        check_same(Manifest("b", "id"), TOPIC, source, tmp_path)
    with pytest.raises(InputError, match="holds a compaction of a"):
        check_same(Manifest("a", "id", "compacted"), TOPIC, source, tmp_path)
    with pytest.raises(InputError, match="an earlier topic a, which was deleted"):
        check_same(Manifest("a", "other"), TOPIC, source, tmp_path)
    dated = Manifest("a", "id", settings={"partition_by": "date"}, partitions={0: (0, 25)})
    check_same(dated, TOPIC, source, tmp_path, "date")
    with pytest.raises(InputError, match=r"is laid out by date, and stays as it was begun; add --partition-by date"):
        check_same(dated, TOPIC, source, tmp_path)
    with pytest.raises(InputError, match=r"is not laid out by date, .* leave out --partition-by date"):
        check_same(Manifest("a", "id", partitions={0: (0, 25)}), TOPIC, source, tmp_path, "date")
    with pytest.raises(DataLossError, match="has a-0 up to offset 26, and its log ends at 25"):
        check_same(Manifest("a", "id", partitions={0: (0, 26)}), TOPIC, source, tmp_path)


def test_a_run_archives_what_is_new(tmp_path: Path, task: ArchiveTask) -> None:
    source = log(a_0=25, a_1=4)

    def run() -> list[str]:
        manifest = load(tmp_path) or Manifest("a", "id")
        return [found.path for found in archive(PLAN, source, manifest, tmp_path, lambda rs: [task(r) for r in rs])]

    assert len(run()) == 4
    assert run() == []
    source.latest |= {tp("a-1"): 6, tp("a-2"): 3}
    assert [path.partition("/")[0] for path in run()] == ["a-1", "a-2"]
    assert in_archive(tmp_path) == in_log(source)


def test_gaps_stand_in_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Compacted(FakeReader):
        def __init__(self, *_: Any, on_gap: Callable[[Any], None], **__: Any) -> None:
            self.on_gap = on_gap

        def read(self, r: OffsetRange) -> Iterator[pa.RecordBatch]:
            yield from batches(r, {3, 4})
            self.on_gap(ConsumerGap("a", 0, 3, 5, "compacted"))

    monkeypatch.setattr(archive_module, "RangeReader", Compacted)
    make = ArchiveTask("localhost", tmp_path, "none", durable_only=False, accept_loss=False)
    archive(PLAN, log(a_0=8), Manifest("a", "id"), tmp_path, lambda ranges: [make(r) for r in ranges])
    made = load(tmp_path)
    assert made is not None
    assert made.files[0].gaps == (FileGap(3, 5, "compacted"),)


class Killed(BaseException):
    pass


class Steps:
    """Every touch of the disk that matters is a step; from step ``last`` on there is no process any more."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.taken = 0

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if self.taken >= self.last:
                raise Killed
            self.taken += 1
            return real(*arguments, **named)

        return step


@pytest.mark.parametrize("layout", [None, pytest.param("date", marks=pytest.mark.soak)])
def test_a_run_that_is_killed_at_any_step(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    """A run that is killed at any step is gone on with and nothing is doubled or missing."""
    monkeypatch.setattr(archive_module, "RangeReader", FakeReader)
    settings = {"partition_by": layout}

    def run(folder: Path, source: FakeLog, last_step: int) -> bool:
        """Whether it came to its end."""
        task = ArchiveTask("localhost", folder, "none", durable_only=False, accept_loss=False, layout=layout)
        steps = Steps(last_step)
        with monkeypatch.context() as patch:
            # Nobody pulls a plug here: that it would be synced is enough.
            patch.setattr(manifest_module, "_sync", steps.around(lambda _: None))
            for name in ("replace", "unlink", "mkdir"):
                patch.setattr(Path, name, steps.around(getattr(Path, name)))
            try:
                # Spark finishes tasks in any order.
                sweep(folder)
                manifest = load(folder) or Manifest("a", "id", settings=settings)
                archive(PLAN, source, manifest, folder, lambda ranges: [*map(task, ranges[::-1])])
            except Killed:
                return False
        return True

    for first_kill in range(500):
        folder = tmp_path_factory.mktemp("archive")
        source = log(a_0=25, a_1=4)
        if run(folder, source, first_kill):
            break
        source.latest |= {tp("a-0"): 31, tp("a-1"): 9}  # the topic grows, and plans made now would be others
        run(folder, source, first_kill // 2 + 3)
        source.latest |= {tp("a-0"): 40}
        assert run(folder, source, 10_000)
        assert in_archive(folder) == in_log(source)
        made = load(folder)
        assert made is not None
        assert {found.path for found in made.files} == {str(p.relative_to(folder)) for p in files_in(folder)}
        assert made.planned == ()
        assert not (folder / BEGUN).exists()
    else:
        pytest.fail("it never came to its end")
    assert first_kill > 20
