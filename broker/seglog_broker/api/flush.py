"""Flushes: everything in some partitions, to the disk."""

from seglog_broker.engine.turns import LOOKUPS_A_TURN
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.scheduler import Scheduler
from seglog_protocol.errors import SeglogError, without_frames
from seglog_protocol.messages import FlushReply, FlushRequest, FlushResult


async def flush(table: PartitionTable, scheduler: Scheduler, request: FlushRequest) -> FlushReply:
    """Sync everything in these partitions, as an append at ack ``disk`` syncs earlier records."""
    results: list[FlushResult] = []
    waits: list[tuple[int, Partition, int]] = []
    async for item in scheduler.spread(request.partitions, LOOKUPS_A_TURN):
        try:
            partition = table.partition(item.topic, item.partition)
        except SeglogError as error:
            results.append(FlushResult(item.topic, item.partition, error=without_frames(error)))
            continue
        partition.want_durable()  # all before the first wait, so that they share a round
        waits.append((len(results), partition, partition.log.log_end_offset))
        results.append(FlushResult(item.topic, item.partition))
    async for number, partition, end_offset in scheduler.spread(waits, LOOKUPS_A_TURN):
        try:
            await wait_durable(partition, end_offset)
        except SeglogError as error:
            results[number] = FlushResult(partition.topic, partition.number, error=without_frames(error))
        else:
            durable = partition.log.durable_end_offset
            results[number] = FlushResult(partition.topic, partition.number, durable=durable)
    return FlushReply(results)
