"""One pass over a segment's batches, which also checks its indexes against them."""

from collections.abc import Iterable, Iterator

from seglog_broker.inspect.check.findings import Finding
from seglog_broker.inspect.check.indexes import ExpectedIndexes
from seglog_broker.inspect.check.judge_indexes import IndexJudge
from seglog_broker.inspect.check.plan import Circumstances, Replacement
from seglog_broker.inspect.log_walk import InvalidBytes
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.header_scan import LocatedBatch


class SegmentWalk:
    """``is_live``: the segment is appended to, or was when the broker was killed, so that its indexes may end early."""

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, circumstances: Circumstances, *, is_live: bool
    ) -> None:
        self._judge = IndexJudge(fs, directory, base_offset, circumstances, is_live=is_live)
        bytes_max = circumstances.index_bytes_max
        self._models = [ExpectedIndexes(base_offset, each, bytes_max) for each in self._judge.intervals()]
        self._before_damage: list[ExpectedIndexes] = []  # of the log as it was when the indexes were written

    def follow(self, segment: Iterable[LocatedBatch | InvalidBytes]) -> Iterator[LocatedBatch]:
        """The batches of ``segment``, as ``LogWalk.segment`` gives them."""
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
        """Findings, and files to replace. Call it after the last batch."""
        return self._judge.judge(self._models, self._before_damage, log_size)

    def _add_bad_checksum(self, found: LocatedBatch) -> None:
        if not self._before_damage:
            self._before_damage = [model.copy() for model in self._models]
        for model in self._before_damage:
            model.add(*found)
