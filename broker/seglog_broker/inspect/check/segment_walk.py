"""One pass over a segment's batches, which also checks its indexes against them."""

from collections.abc import Iterable, Iterator

from seglog_broker.inspect.check.findings import Finding
from seglog_broker.inspect.check.indexes import ExpectedIndexes
from seglog_broker.inspect.check.judge_indexes import IndexJudge
from seglog_broker.inspect.check.plan import PartitionContext, Replacement
from seglog_broker.inspect.log_walk import InvalidBytes
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.header_scan import LocatedBatch


class SegmentWalk:
    """Passes the batches of one segment on, and computes the indexes that they should have.

    ``is_live``: the segment is active, or was when the broker was killed, so that its indexes may lack entries.
    """

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, context: PartitionContext, *, is_live: bool
    ) -> None:
        self._judge = IndexJudge(fs, directory, base_offset, context, is_live=is_live)
        bytes_max = context.index_bytes_max
        self._models = [ExpectedIndexes(base_offset, each, bytes_max) for each in self._judge.intervals()]
        self._before_damage: list[ExpectedIndexes] = []  # as if batches with a wrong checksum were right

    def batches(self, segment: Iterable[LocatedBatch | InvalidBytes]) -> Iterator[LocatedBatch]:
        """The valid batches of ``segment``, which is what ``LogWalk.segment`` returned."""
        for found in segment:
            if isinstance(found, InvalidBytes):
                if found.header is not None:
                    self._add_bad_checksum(LocatedBatch(found.position, found.header))
                continue
            for model in (*self._models, *self._before_damage):
                model.add(*found)
            self._judge.true_times.add(found.header)
            yield found

    def judge_indexes(self, log_size: int) -> tuple[list[Finding], list[Replacement]]:
        """Findings about both indexes, and the files to replace. Call it after the last batch."""
        return self._judge.judge(self._models, self._before_damage, log_size)

    def _add_bad_checksum(self, found: LocatedBatch) -> None:
        if not self._before_damage:
            self._before_damage = [model.copy() for model in self._models]
        for model in self._before_damage:
            model.add(*found)
