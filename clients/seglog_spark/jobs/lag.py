"""The lag of a topic's readers: an archive, or a streaming query by its checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from seglog.cli.exits import InputError
from seglog_spark.jobs.manifest import MANIFEST, load_whole
from seglog_spark.offsets import Offsets, TopicPartition, from_spark
from seglog_spark.planning import Ends


class Lag(NamedTuple):
    """One partition's ``position``, the offset that the reader reads next, and the ``end`` of its log."""

    partition: int
    position: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets from the position to the end."""
        return max(0, self.end - self.position)


def lag_of(folder: Path, ends: Mapping[TopicPartition, Ends]) -> list[Lag]:
    """The lag of every partition; one new to the reader is at the earliest offset. InputError for any other folder."""
    positions = _positions(folder)
    topics = {partition.topic for partition in positions}
    if not topics & {partition.topic for partition in ends} and positions:
        raise InputError(f"{folder} is of {', '.join(sorted(topics))}, and not of the topic of this report")
    return [Lag(p.partition, positions.get(p, found.earliest), found.latest) for p, found in sorted(ends.items())]


def _positions(folder: Path) -> Offsets:
    if (folder / MANIFEST).is_file():
        manifest = load_whole(folder)
        return {TopicPartition(manifest.topic, number): end for number, (_, end) in manifest.partitions.items()}
    if (folder / "offsets").is_dir():
        return _checkpoint(folder)
    raise InputError(f"{folder} is not an archive (no {MANIFEST}), nor a checkpoint of a query (no offsets)")


def _checkpoint(folder: Path) -> Offsets:
    """The end offsets of the newest micro-batch that Spark has committed; empty when there is none."""
    done = _numbers(folder / "commits")
    if not done:
        return {}
    path = folder / "offsets" / str(max(done))
    try:
        # Version, metadata, and a line for each source; other sources have offsets of other shapes, or none.
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[2:] if line != "-"]
        found = [from_spark(line) for line in lines if isinstance(line, dict)]
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not what a query on seglog notes: {error}") from error
    positions: Offsets = {}
    for offsets in found:
        positions |= offsets
    return positions


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
