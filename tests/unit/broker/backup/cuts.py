"""What a broker that backs up continuously publishes, made of an open log directory without one."""

from collections.abc import Callable

from seglog_broker.backup.agent_messages import Changes, Cut, PartitionCut
from seglog_broker.backup.following import Follower
from seglog_broker.backup.points import PointWriter
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import FileSystem
from tests.logs import bases_of


def cut_of(directory: LogDirectory, number: int, now_ms: int) -> Cut:
    """A cut of all of it."""
    partitions = []
    for (topic, partition), log in directory.logs.items():
        where = topic, partition, directory.registry.topics[topic].id
        offsets = log.log_start_offset, log.log_end_offset
        partitions.append(PartitionCut(*where, *offsets, log.segments.active.size, tuple(bases_of(log))))
    return Cut(number, now_ms, True, tuple(partitions), registry=directory.registry.content().decode())


def publish_cut(
    fs: FileSystem,
    directory: LogDirectory,
    writer: PointWriter,
    now_ms: int,
    meanwhile: Callable[[], object] = lambda: None,
) -> str:
    """Publish all of the directory as it is; its files are read after ``meanwhile``. The id of the moment."""

    def ask_cut(_is_whole: bool) -> Cut:
        cut = cut_of(directory, 1, now_ms)
        meanwhile()
        return cut

    follower = Follower(
        *(fs, directory.path, writer.destination, writer),
        ask_cut=ask_cut,
        ask_changes=lambda: Changes(()),
        sent=lambda: 0,
        keep_ms=1 << 40,
    )
    published = follower.run_round()
    assert published is not None, follower.lacking
    return published.id
