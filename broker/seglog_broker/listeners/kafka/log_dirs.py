"""DescribeLogDirs and AlterReplicaLogDirs: the one log directory, and what its partitions take of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.partitions.partition import Partition
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

PARTITIONS_A_TURN: Final = 64
"""Partitions that are looked at before other tasks run."""

_NOT_KNOWN: Final = -1

_Directory = messages.DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = messages.DescribeLogDirsResponse.DescribeLogDirsTopic
_Partition = messages.DescribeLogDirsResponse.DescribeLogDirsPartition

log = structlog.get_logger()


async def describe_log_dirs(
    caller: Caller, request: messages.DescribeLogDirsRequest, version: int
) -> messages.DescribeLogDirsResponse:
    """The log directory with the sizes (bytes) of the partitions asked for, of all if none are named."""
    del version
    space = caller.engine.directory.space
    directory = _Directory(log_dir=_path(caller), total_bytes=space.total, usable_bytes=_NOT_KNOWN, topics=[])
    try:
        directory.usable_bytes = (await caller.engine.offload.maintenance(space.measure)).free
    except OSError as error:
        log.warning("disk_not_measured", path=directory.log_dir, reason=str(error))
    topics: dict[str, _Topic] = {}
    for number, partition in enumerate(_wanted(caller, request)):
        if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
            await caller.turn()
        if partition is None:
            continue
        await caller.engine.learn_sizes([partition.log])
        try:
            size = partition.log.size
        except (OSError, SeglogError) as error:  # it was deleted meanwhile, or its files cannot be looked at
            log.debug("size_not_known", topic=partition.topic, partition=partition.number, reason=str(error))
            continue
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = _Topic(name=partition.topic, partitions=[])
            directory.topics.append(topic)
        topic.partitions.append(_Partition(partition_index=partition.number, partition_size=size))
    return messages.DescribeLogDirsResponse(results=[directory])


def _wanted(caller: Caller, request: messages.DescribeLogDirsRequest) -> Iterator[Partition | None]:
    """The partitions asked for, each once; None for one that is not in service."""
    table = caller.engine.partitions
    if request.topics is None:
        for name, topic in list(caller.engine.directory.registry.topics.items()):
            for number in range(topic.partitions):
                yield table.find_readable(name, number)
        return
    seen: set[tuple[str, int]] = set()
    for asked in request.topics:
        for number in asked.partitions:
            partition = table.find_readable(asked.topic, number)
            if partition is None or (asked.topic, number) in seen:
                yield None
            else:
                seen.add((asked.topic, number))
                yield partition


async def alter_replica_log_dirs(
    caller: Caller, request: messages.AlterReplicaLogDirsRequest, version: int
) -> messages.AlterReplicaLogDirsResponse:
    """Partitions are moved to the directory where they are; there is no other one."""
    del version
    topics: dict[str, messages.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = {}
    path = _path(caller)
    for directory in request.dirs:
        for topic in directory.topics:
            result = topics.setdefault(
                topic.name,
                messages.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                    topic_name=topic.name, partitions=[]
                ),
            )
            async for number in in_turns(caller, topic.partitions):
                if directory.path != path:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                elif caller.engine.partitions.find_readable(topic.name, number) is None:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    code = ErrorCode.NONE
                result.partitions.append(
                    messages.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=number, error_code=code
                    )
                )
    return messages.AlterReplicaLogDirsResponse(results=list(topics.values()))


def _path(caller: Caller) -> str:
    return str(Path(caller.engine.directory.path).absolute())
