"""Appends in progress: what is not written yet, and the replies that wait for their ack."""

from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.group_commit import Round
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.log.batch_checks import RecordRules
from seglog_broker.storage.log.recompression import Recompression
from seglog_protocol.errors import SeglogError, without_frames
from seglog_protocol.messages import Ack, AppendReply, AppendResult


class RecordWork(NamedTuple):
    """A batch whose records take too long for the loop: they are to be checked, recompressed, or both."""

    batch: memoryview
    rules: RecordRules | None
    wanted: Recompression | None


Outcome = SeglogError | bytearray | None
"""What became of a ``RecordWork``: its error, the recompressed batch, or None where the batch stays as it is."""


class FilesWanted(NamedTuple):
    """The next partition needs a file to be opened, and others have to be closed first."""


FILES: Final = FilesWanted()

Wanted = RecordWork | FilesWanted | None

Writing = Generator[Wanted, Outcome, None]
"""The steps of an append. They yield None to let other tasks run, FILES, or work on records, whose outcome is then sent
in."""


class Acknowledged:
    """Appends that are written, and may still wait for their ack."""

    __slots__ = ()

    @property
    def replies(self) -> list[AppendReply | SeglogError] | None:
        """The reply to each request, if every partition has reached the requested ack, or failed; else None."""
        raise NotImplementedError

    def listen(self, listener: Callable[[], None]) -> bool:
        """Call ``listener`` when the replies should be complete. False if no round will do that: then call ``wait``."""
        raise NotImplementedError

    async def wait(self) -> list[AppendReply | SeglogError]:
        """Return when every partition has reached the requested ack, or failed. If cancelled, the batches stay.

        Any number of tasks may wait.
        """
        raise NotImplementedError


class PendingAppends(Acknowledged):
    """Appends in progress: consecutive requests of one connection, all with one ack.

    Call ``write_rest`` unless ``is_written``. Then ``replies`` has the replies if no ack is outstanding; otherwise
    ``wait`` returns them.
    """

    __slots__ = (
        "_counts",
        "_ends",
        "_idle_writers",
        "_offload",
        "_payloads",
        "_reads",
        "_refused",
        "_replies",
        "_results",
        "_round",
        "_stopped_for",
        "_waits",
        "_writing",
        "ack",
        "effort",
        "is_written",
        "may_wait_for_files",
    )

    def __init__(
        self, reads: ColdReads, offload: Offload, idle_writers: IdleWriters, ack: Ack, payloads: list[memoryview]
    ) -> None:
        self.ack = ack
        self.effort = 0.0
        self.is_written = False
        self.may_wait_for_files = True  # until that was in vain
        self._payloads = payloads
        self._reads = reads
        self._offload = offload
        self._idle_writers = idle_writers
        self._round: Round | None = None  # of group commit, which syncs all of these partitions
        self._results: list[list[AppendResult]] = []  # of each request
        self._counts: dict[int, dict[str, int]] = {}  # by request: numbers of partitions, if the client has another one
        self._refused: dict[int, SeglogError] = {}  # requests that were refused as a whole
        self._ends: dict[Partition, int] = {}  # the offset up to which each must be durable
        self._waits: list[tuple[Partition, int, list[AppendResult], int]] = []  # partition, offset; place of its result
        self._replies: list[AppendReply | SeglogError] | None = None  # once they are known
        self._writing: Writing | None = None
        self._stopped_for: Wanted = None

    # --- Writing ------------------------------------------------------------------------------------------------------

    def begin_request(self, counts: dict[str, int] | None = None) -> list[AppendResult]:
        """The list for the results of the next request."""
        if counts is not None:
            self._counts[len(self._results)] = counts
        results: list[AppendResult] = []
        self._results.append(results)
        return results

    def refuse_request(self, error: SeglogError) -> None:
        """Answer the request begun last with ``error``."""
        self._refused[len(self._results) - 1] = error

    def wait_for(self, partition: Partition, end_offset: int, results: list[AppendResult], number: int) -> None:
        """Send result ``number`` of ``results`` when every record of ``partition`` below ``end_offset`` is durable."""
        self._waits.append((partition, end_offset, results, number))
        if end_offset > self._ends.get(partition, 0):
            self._ends[partition] = end_offset

    def join_round(self, partition: Partition) -> None:
        """Have the next round sync ``partition``."""
        self._round = partition.want_durable()

    def write(self, writing: Writing) -> None:
        """Write as much as is possible without letting other tasks run."""
        self._writing = writing
        self._go_on(None)

    def keep_payloads(self) -> int:
        """Copy what is not written yet, because the buffer that holds it gets other bytes; the bytes copied."""
        copied = 0
        for number in range(max(0, len(self._results) - 1), len(self._payloads)):
            self._payloads[number] = memoryview(bytearray(self._payloads[number]))
            copied += len(self._payloads[number])
        if isinstance(self._stopped_for, RecordWork):
            self._stopped_for = self._stopped_for._replace(batch=memoryview(bytes(self._stopped_for.batch)))
        return copied

    async def write_rest(self) -> None:
        """Write the rest, and let other tasks run in between. If cancelled, batches that are written stay."""
        while not self.is_written:
            outcome: Outcome = None
            work = self._stopped_for
            if work is None:
                await self._reads.turn()
            elif isinstance(work, FilesWanted):
                self.may_wait_for_files = await self._idle_writers.wait_for_room()
            else:
                try:
                    outcome = await self._done(work)
                except SeglogError as error:
                    outcome = error
            self._go_on(outcome)

    async def _done(self, work: RecordWork) -> bytearray | None:
        if work.wanted is not None:
            return await self._offload.recompress(work.batch, work.wanted, work.rules)
        if work.rules is not None:
            await self._offload.check_records(work.batch, work.rules)
        return None

    def _go_on(self, outcome: Outcome) -> None:
        assert self._writing is not None
        try:
            self._stopped_for = self._writing.send(outcome)
        except StopIteration:
            self.is_written = True
            self._payloads.clear()  # their buffers may be large, and an ack takes its time

    # --- Answering ----------------------------------------------------------------------------------------------------

    @property
    def replies(self) -> list[AppendReply | SeglogError] | None:
        """As ``Acknowledged`` has it."""
        if self._replies is None:
            for partition, offset in self._ends.items():
                if partition.log.durable_end_offset < offset:
                    return None
            self._replies = self._all_replies()
        return self._replies

    def listen(self, listener: Callable[[], None]) -> bool:
        """As ``Acknowledged`` has it."""
        return self._round is not None and self._round.listen(listener)

    async def wait(self) -> list[AppendReply | SeglogError]:
        """As ``Acknowledged`` has it."""
        while self._ends:
            partition, offset = next(iter(self._ends.items()))
            try:
                await partition.wait_durable(offset)
            except SeglogError as error:
                failed = AppendResult(partition.topic, partition.number, error=without_frames(error))
                durable = partition.log.durable_end_offset
                for waiting, end_offset, results, number in self._waits:
                    if waiting is partition and end_offset > durable:
                        results[number] = failed
            self._ends.pop(partition, None)
        self._replies = self._all_replies()
        return self._replies

    def _all_replies(self) -> list[AppendReply | SeglogError]:
        counts, refused = self._counts, self._refused
        if not counts and not refused:
            return [AppendReply(results) for results in self._results]
        return [
            refused[number] if number in refused else AppendReply(results, counts.get(number))
            for number, results in enumerate(self._results)
        ]
