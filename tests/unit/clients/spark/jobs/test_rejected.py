"""Archives whose values have a type, and the records whose values do not fit."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from seglog.arrow.fitting import Misfit
from seglog.arrow.values import Values
from seglog.cli.arguments import Options
from seglog.cli.exits import InputError
from seglog.core.records import ConsumerGap
from seglog_spark.jobs import archiving, value_types
from seglog_spark.jobs.archiving import ArchiveTask, archive, next_ranges
from seglog_spark.jobs.inputs import open_input
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import FileGap, Layout, Manifest, load, rejected_name, save
from seglog_spark.tables.parquet_files import SCHEMA
from seglog_spark.tables.rejected import schema_with
from seglog_spark.tables.stores import Folder, Store
from seglog_spark.tables.targets import ParquetFiles, Target
from tests.spark.fake_log import RECORD_BYTES, log
from tests.spark.jobs.records import DAY_US, batches, timed
from tests.unit.clients.arrow.schema_registry import schema_registry

VALUES = Values("json", "id bigint")
WRONG = {3, 4, 9}


def value_at(offset: int) -> bytes | None:
    """Of offsets with 3 at their end it is no JSON, with 4 of another shape, with 7 a tombstone; of 9 the time is."""
    return {3: b"{", 4: b'{"id":"x"}', 7: None}.get(offset % 10, b'{"id":%d}' % offset)


COMPACTED = 8
"""An offset without a record."""


class FakeReader:
    """In place of RangeReader."""

    def __init__(
        self, *_: Any, on_gap: Callable[[ConsumerGap], None], on_misfit: Callable[..., None], **__: Any
    ) -> None:
        self.on_gap, self.on_misfit = on_gap, on_misfit

    def read(self, r: OffsetRange) -> Iterator[pa.RecordBatch]:
        place = SCHEMA.names.index("value")
        if r.start <= COMPACTED < r.end:
            self.on_gap(ConsumerGap("a", 0, COMPACTED, COMPACTED + 1, "compacted"))
        for offset in range(r.start - r.start % 10 + 9, r.end, 10):
            self.on_misfit(Misfit("a", 0, offset, "of a time", b""))
        for batch in timed(batches(r, {COMPACTED}), lambda offset: offset % 2 * DAY_US):
            values = [value_at(offset) for offset in batch.column("offset").to_pylist()]
            yield batch.set_column(place, "value", pa.array(values, pa.binary()))


class KilledError(BaseException):
    pass


@pytest.fixture(params=[None, "date"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setattr(archiving, "RangeReader", FakeReader)
    found: Layout = request.param
    return found


def run(folder: Path, layout: Layout, end: int, target: Target | None = None) -> None:
    place = target or ParquetFiles(Folder(folder))
    task = ArchiveTask(
        "localhost", place.store, "zstd", durable_only=False, accept_loss=False, layout=layout, values=VALUES
    )
    with place.store.claimed():
        manifest = load(place.store) or Manifest("a", "id", settings={"partition_by": layout} if layout else {})
        plan = partial(next_ranges, server="localhost", range_bytes=40 * RECORD_BYTES)
        archive(plan, log(a_0=end), manifest, place, lambda ranges: [task(r) for r in ranges])


class Table(ParquetFiles):
    """A table with a log of its own, which is what ``told`` says."""

    told: ClassVar[dict[int, int]] = {}

    def ends(self) -> Mapping[int, int]:  # type: ignore[override]
        return self.told


def check(folder: Path, end: int) -> None:
    """Each record is in the archive with a value of its type, or beside it with the reason."""
    rows = ds.dataset(folder, format="parquet").to_table(columns=["offset", "value"]).sort_by("offset").to_pylist()
    fitting = [offset for offset in range(end) if offset % 10 not in WRONG and offset != COMPACTED]
    assert [row["offset"] for row in rows] == fitting
    assert [row["value"] for row in rows] == [None if n % 10 == 7 else {"id": n} for n in fitting]
    (first, *_) = ds.dataset(folder, format="parquet").files
    assert pq.read_schema(first).equals(schema_with(VALUES))
    made = load(Folder(folder))
    assert made is not None
    beside = [row for found in made.rejected for row in pq.read_table(folder / found.path).to_pylist()]
    assert [(row["offset"], row["value"]) for row in beside] == [
        (n, value_at(n)) for n in range(end) if n % 10 in WRONG
    ]
    assert {row["reason"][:7] for row in beside} == {"no JSON", "JSON of", "of a ti"}
    assert sum(found.records for found in made.rejected) == sum(found.missing for found in made.files) - 1
    assert made.files[0].gaps is not None
    assert {FileGap(3, 5, "rejected"), FileGap(8, 9, "compacted")} <= set(made.files[0].gaps)
    named = {found.path for found in (*made.files, *made.rejected)}
    assert {name for name in Folder(folder).names() if name.rpartition("/")[2][0] not in "_."} == named


def test_what_a_table_has_by_its_log_alone_is_in_the_manifest_and_goes_with_a_rollback(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(Folder(tmp_path))

    def killed(store: Store, manifest: Manifest) -> None:
        if manifest.partitions[0][1] == 60:
            raise KilledError
        save(store, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(archiving, "save", killed)
        with pytest.raises(KilledError):
            run(tmp_path, layout, 60, table)
    for end in (60, 30, 60):
        monkeypatch.setattr(Table, "told", {0: end})
        run(tmp_path, layout, 60, table)
        check(tmp_path, 60)


def test_jobs_that_take_records_refuse_it(tmp_path: Path) -> None:
    save(Folder(tmp_path), Manifest("a", "id", settings={"values": {"kind": "json"}}))
    with pytest.raises(InputError, match="has values as json; records are in an archive of bytes"):
        open_input(Options(id, "", json=False, connect_timeout=1.0, values={"archive": str(tmp_path)}), None)


def test_a_newer_schema_of_a_registry_has_the_same_columns_or_is_refused() -> None:
    with schema_registry() as registry:
        asked = Values("avro", registry=registry.url)

        def newest(*names: str) -> Values:
            fields = [{"name": name, "type": "int", "doc": str(len(registry.asked))} for name in names]
            registry.add(5, "t-value", json.dumps({"type": "record", "name": "R", "fields": fields}))
            return asked.for_topic("t")

        settings = {"values": msgspec.to_builtins(newest("id"))}
        newer = newest("id")
        assert value_types.kept(asked, settings, "t", "here") == newer
        newest("id", "more")
        with pytest.raises(InputError, match=r"here keeps the columns .* others now \(more\): name another .* go on"):
            value_types.kept(asked, settings, "t", "here")


def test_what_a_killed_run_rejected_goes_when_it_fits(tmp_path: Path, layout: Layout) -> None:
    stale = rejected_name(OffsetRange("a", 0, 0, 3))
    Folder(tmp_path).write(stale, b"of a run that was killed, when the registry lacked a schema")
    run(tmp_path, layout, 3)
    assert not (tmp_path / stale).exists()
    made = json.loads((tmp_path / "_manifest.json").read_bytes())
    assert made["rejected"] == []
