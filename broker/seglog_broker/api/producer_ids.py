"""Ids for idempotent producers."""

from dataclasses import dataclass

import trio

from seglog_broker.partitions.scheduler import Service
from seglog_protocol.errors import PartitionRecoveringError
from seglog_protocol.messages import InitProducerReply


@dataclass(eq=False, repr=False)
class ProducerIdService(Service):
    """Gives ids to idempotent producers, each once."""

    def __post_init__(self) -> None:
        self._lock = trio.Lock()

    async def init_producer(self) -> InitProducerReply:
        """An id for a new idempotent producer.

        Raises a retriable StorageError if no id could be reserved, PartitionRecoveringError as long as it is unknown
        which ids the logs have.
        """
        ids = self._directory.producer_ids
        if self._recoveries and not ids.is_recorded:
            raise PartitionRecoveringError(
                "which producer ids have been given is not known before every log has been read: try again"
            )
        async with self._lock:
            producer_id = ids.take()
            while producer_id is None:
                block = ids.next_block()
                with trio.CancelScope(shield=True):  # two writes must not use the same temporary file at once
                    await self._replace_file("no producer id could be given", "ask again", block.run)
                ids.add(block)
                producer_id = ids.take()
        return InitProducerReply(producer_id, 0)
