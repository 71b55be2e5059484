"""What an archive is for its readers, by format: Parquet files and a manifest, or a table with a log of its own."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from seglog_spark.tables.manifest import ArchivedFile


class Target(Protocol):
    """A table. Its log, where it has one, is the truth about what it holds: the manifest may lag behind by a commit."""

    def ends(self) -> Mapping[int, int]:
        """The offset up to which the table has everything of a partition, by its own log; empty without one."""

    def commit(self, files: Sequence[ArchivedFile], ends: Mapping[int, int]) -> None:
        """Add files, and how far each partition reaches then: both or nothing.

        Raises InputError when somebody else has committed since this run looked.
        """

    def tidy(self) -> str | None:
        """Put small files together where the format can; else a sentence with the command that does, if it is worth it.

        Called after the last commit of a run, and after rounds of one that follows.
        """


class ParquetFiles:
    """Plain Parquet files: those count that the manifest names, so saving that is the commit."""

    def ends(self) -> Mapping[int, int]:
        """Implements ``Target``."""
        return {}

    def commit(self, files: Sequence[ArchivedFile], ends: Mapping[int, int]) -> None:
        """Implements ``Target``."""

    def tidy(self) -> str | None:
        """Implements ``Target``."""
        return None
