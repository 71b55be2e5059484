"""One segment, gone through once: its batches go by, and its indexes are held against them."""

from collections.abc import Callable, Iterator

from seglog_broker.inspect.check.findings import Finding
from seglog_broker.inspect.check.indexes import ExpectedIndexes
from seglog_broker.inspect.check.judge_indexes import IndexJudge
from seglog_broker.inspect.check.plan import Circumstances, Replacement
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.batch_scan import LocatedBatch

OnSpoilt = Callable[[LocatedBatch], None]
"""Told of a damaged stretch that is one whole batch but for its checksum."""


class SegmentWalk:
    """``is_live``: it is appended to, or was when the broker was killed, so that its indexes may end early."""

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, circumstances: Circumstances, *, is_live: bool
    ) -> None:
        self._judge = IndexJudge(fs, directory, base_offset, circumstances, is_live=is_live)
        bytes_max = circumstances.index_bytes_max
        self._models = [ExpectedIndexes(base_offset, each, bytes_max) for each in self._judge.intervals()]
        self._with_spoilt: list[ExpectedIndexes] = []  # of the log as it was when the indexes were written

    def follow(self, batches: Callable[[OnSpoilt], Iterator[LocatedBatch]]) -> Iterator[LocatedBatch]:
        """Pass on what ``batches`` yields, given whom to tell of spoilt ones in between."""
        for found in batches(self._add_spoilt):
            for model in (*self._models, *self._with_spoilt):
                model.add(*found)
            self._judge.true_times.add(found.header)
            yield found

    def judge_indexes(self, log_size: int) -> tuple[list[Finding], list[Replacement]]:
        """When all have gone by: what is wrong, and what to replace."""
        return self._judge.judge(self._models, self._with_spoilt, log_size)

    def _add_spoilt(self, found: LocatedBatch) -> None:
        if not self._with_spoilt:
            self._with_spoilt = [model.copy() for model in self._models]
        for model in self._with_spoilt:
            model.add(*found)
