"""What an archive is for its readers, by format: Parquet files and a manifest, or a table with a log of its own."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from seglog.cli.exits import InputError
from seglog.cli.figures import bytes_text
from seglog_spark.tables.manifest import ArchivedFile, load
from seglog_spark.tables.stores import Store

SMALL_BYTES: Final = 16 * 1024 * 1024
"""Of a file: readers spend more time on opening smaller ones than on reading them."""

SMALL_FILES: Final = 20
"""So many files of less than an eighth of the size that was asked for are too many in one partition of a table."""

PeriodT = TypeVar("PeriodT")


class Shape(NamedTuple):
    """What a table is made for: the id of its topic, None for one of somebody else, its columns and its partitions."""

    topic_id: str | None
    columns: Mapping[str, object]
    partitioned_by: Sequence[str]


class Target(Protocol):
    """A table. Its log, where it has one, is the truth about what it holds: the manifest may lag behind by a commit."""

    @property
    def store(self) -> Store:
        """Where its files lie."""

    def ends(self) -> Mapping[int, int] | None:
        """The offset up to which the table has everything of a partition, by its own log; None without one."""

    def commit(self, files: Sequence[ArchivedFile], ends: Mapping[int, int]) -> None:
        """Add files, and how far each partition reaches then: both or nothing.

        Raises InputError when somebody else has committed since this run looked.
        """

    def tidy(self) -> str | None:
        """Put small files together where the format can; else a sentence with the command that does, if it is worth it.

        Called after the last commit of a run, and after rounds of one that follows.
        """


_FILES_MIN: Final = 100
"""So few are quick to read, whatever their size."""


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Plain Parquet files: those count that the manifest names, so saving that is the commit."""

    store: Store

    def ends(self) -> None:
        """Implements ``Target``."""

    def commit(self, files: Sequence[ArchivedFile], ends: Mapping[int, int]) -> None:
        """Implements ``Target``."""

    def tidy(self) -> str | None:
        """Implements ``Target``: nothing puts these together, but another archive, or a copy for readers, can."""
        manifest = load(self.store)
        sizes = [found.size for found in manifest.files] if manifest is not None else []
        if len(sizes) < _FILES_MIN or sum(sizes) >= len(sizes) * SMALL_BYTES:
            return None
        place, average = self.store.place, bytes_text(sum(sizes) / len(sizes))
        return (
            f"the {len(sizes):,} files in {place} have {average} on average, slow to read: fewer come of a new "
            f'archive with a coarser --partition-by or a longer --trigger, or of a copy for readers: duckdb -c "copy '
            f"(from read_parquet('{place}/**/*.parquet')) to 'one.parquet'\""
        )


def check_table(shown: str, found: Shape, wanted: Shape) -> None:
    """Raise InputError for a table that is not of the topic, or not as a run would write it."""
    how = "archive to a place of its own, or drop that table"
    if found.topic_id is None:
        raise InputError(f"{shown} was not made by seglog; {how}")
    if found.topic_id != wanted.topic_id:
        raise InputError(f"{shown} is of another topic, or of one that was deleted: its id is {found.topic_id}; {how}")
    if found.partitioned_by != wanted.partitioned_by:
        by = " and ".join(found.partitioned_by) or "nothing"
        raise InputError(f"{shown} is partitioned by {by}; give the options that it was begun with")
    for name, kind in wanted.columns.items():
        if found.columns.get(name) != kind:
            raise InputError(
                f"{shown} has no column {name} of the type that this run would write; give the options that it was "
                "begun with"
            )


def moved(shown: str) -> InputError:
    """The error of a commit that another run's came before."""
    return InputError(
        f"another run has committed to {shown} meanwhile, so this one did not; let one run at a time archive there, "
        "and start it again"
    )


def crowded(periods: Iterable[PeriodT], sizes: Iterable[int], file_bytes: int) -> list[PeriodT]:
    """The partitions of a table that have too many small files, by the partition and size of each file."""
    small = Counter(period for period, size in zip(periods, sizes, strict=True) if size < file_bytes // 8)
    return [period for period, count in small.items() if count >= SMALL_FILES]
