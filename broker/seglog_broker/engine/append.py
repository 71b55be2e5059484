"""Appends: batches are checked, written in the order of the request, and acknowledged at the requested level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from seglog_broker.engine.pending_appends import AppendContext, PendingAppends
from seglog_broker.storage.log.batch_checks import may_be_early
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import AppendRequest

FILES_AT_ONCE: Final = 256
"""Files that must be free for an append to be written together with others, of as many partitions."""

PLAIN_BATCHES_MAX: Final = 8
"""The most batches of a request that is written together with others."""


@dataclass(eq=False, repr=False)
class AppendService:
    """Appends batches to partitions."""

    _context: AppendContext

    def is_plain(self, request: AppendRequest, payload: memoryview) -> bool:
        """Whether ``append`` writes it at once, also together with others.

        It is short, its topics exist and look at no records, none of its batches is refused for a time in the future,
        whose records would be looked at, its files need not wait for others to be closed, and its ack is sent.
        """
        if request.ack == "none" or len(request.partitions) > PLAIN_BATCHES_MAX:
            return False
        has_files = self._context.directory.handles.has_room_for(FILES_AT_ONCE)
        now = self._context.clock.now_ms()
        position = 0
        for item in request.partitions:
            partition = self._context.table.find(item.topic, item.partition)
            if partition is None or partition.looks_at_records:
                return False
            if not has_files and not partition.log.active.log.holds_writer:
                return False
            if may_be_early(payload, position, partition.log.config, now):
                return False
            position += item.size
        return True

    def append(
        self,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, SeglogError] | None = None,
        *,
        for_broker: bool = False,
        at_once: bool = False,
    ) -> PendingAppends:
        """Write the batches of requests with one ack, in their order, each with its own result; some at once.

        Batches for one partition that follow each other are written together. ``refused``: topic -> error, for topics
        that could not be created, or that the client may not write to. ``payloads`` are changed in place.
        ``for_broker``: they are the broker's own, which writes internal topics. ``at_once``: they are plain, and none
        waits for files to be closed.
        """
        pending = PendingAppends(self._context, requests, payloads, refused, for_broker=for_broker, at_once=at_once)
        assert pending.is_written or not at_once, "a plain append waits for nothing"
        return pending
