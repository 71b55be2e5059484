"""Steps of a broker's tasks on a log, which tests of several rooms take."""

from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.log.partition_log import PartitionLog


def checkpoint(log: PartitionLog) -> int:
    """Sync closed segments as the checkpoint task does; the offset up to which they are on the disk."""
    flush = log.flusher.prepare_checkpoint()
    flush.run()
    log.finish_flush(flush, None)
    return flush.end_offset


def save_state(log: PartitionLog) -> None:
    """Write what is new in the state of a log, if anything is, as the checkpoint task does."""
    if (write := log.state_file.prepare()) is not None:
        write.run()
        log.state_file.finish(written=True)


def take_oldest(log: PartitionLog, count: int) -> None:
    """Drop the oldest segments as retention does, and remove their files."""
    doomed = log.truncation.drop_oldest(count)
    doomed.set_aside()
    doomed.remove()


def piece_at(log: PartitionLog, offset: int, bytes_max: int = 10_000, *, min_one: bool = True) -> tuple[int, int, int]:
    """(start offset, position, size) of what a read finds."""
    found = log.read(offset, bytes_max, min_one=min_one)
    assert found is not None
    found.release()
    return found.start_offset, found.position, found.size


def create_topic(directory: LogDirectory, name: str, partitions: int, config: dict[str, str]) -> Topic:
    """Create a topic as the broker does, which makes its directories in a thread."""
    topic = directory.topics.new_topic(name, partitions, config)
    creation = directory.topics.plan_creation([topic])
    failure = None
    try:
        creation.run()
    except OSError as error:
        failure = error
    directory.topics.finish_creation(creation, failure)
    return topic


def delete_topic(directory: LogDirectory, topic: Topic) -> list[str]:
    """Delete a topic as the broker does, in whose tasks others have a turn between the steps."""
    directory.topics.record_deletion(topic)
    directory.topics.release([(topic.name, partition) for partition in range(topic.partitions)])
    return directory.topics.mark_for_deletion(topic)
