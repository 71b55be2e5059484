"""Cuts of a broker on the forgetful disk, and copies of its files as far as they say: a backup and a restore."""

from typing import cast

from seglog_broker.api.broker import Broker
from seglog_broker.backup.agent_messages import Cut, PartitionCut, to_agent
from seglog_broker.backup.finishing import at_the_cut
from seglog_broker.backup.following import _of_closed_segments
from seglog_broker.partitions.cuts import CutMaker, Moment
from seglog_broker.storage.directory.snapshot import LINKED_LAST
from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE, REGISTRY_FILE, partition_directory_name
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.testing.forgetful import PROCESS_KILL, ForgetfulFileSystem
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol import segment_files as names

SMALL_FILES = PARTITION_METADATA_FILE, checkpoints.LEADER_EPOCH_CHECKPOINT


class NotingCuts(CutMaker):
    """Notes in the turn of a cut what ``kill -9`` would leave then."""

    killed: ForgetfulFileSystem

    def capture(self, *, is_whole: bool = False) -> Moment:
        self.killed = cast("ForgetfulFileSystem", self._fs).found_after(PROCESS_KILL)
        return super().capture(is_whole=is_whole)


class Copier:
    """Follows a broker from now on."""

    def __init__(self, broker: Broker) -> None:
        self.cuts = NotingCuts(*broker.common, broker.commits.feed)
        broker.commits.feed.follow()
        self.partitions: dict[tuple[str, int], PartitionCut] = {}
        self.bases: dict[tuple[str, int], tuple[int, ...]] = {}
        self._fs = cast("ForgetfulFileSystem", broker.fs)
        self._registry = ""

    async def cut(self) -> Cut:
        """Take a cut, as a line says it."""
        moment = await self.cuts.cut()
        cut = to_agent(b"".join([piece async for piece in self.cuts.pieces(moment)]))
        assert isinstance(cut, Cut)
        for gone in cut.gone:
            self.partitions.pop(gone, None)
        for part in cut.partitions:
            key = part.topic, part.partition
            self.partitions[key] = part
            self.bases[key] = self.bases[key] if part.bases is None else part.bases
        self._registry = cut.registry or self._registry
        return cut

    def copy(self) -> ForgetfulFileSystem | None:
        """A disk with the last cut as its ``/data``; None where files were replaced or removed meanwhile."""
        fs, found, offsets = self._fs, self._fs.snapshot(), dict[tuple[str, int], int]()
        copied = {name: found[f"/data/{name}"] for name in LINKED_LAST if f"/data/{name}" in found}
        copied[REGISTRY_FILE] = self._registry.encode()
        for key, part in self.partitions.items():
            directory, bases = partition_directory_name(*key), self.bases[key]
            active = f"{directory}/{names.segment_file_name(bases[-1], names.LOG_SUFFIX)}"
            if len(found.get(f"/data/{active}", b"")) < part.active_size:  # of a topic that is made again
                return None
            if not fs.exists(f"/data/{directory}"):
                return None
            closed = _of_closed_segments(fs.list_directory(f"/data/{directory}"), bases)
            if not {names.segment_file_name(base, names.LOG_SUFFIX) for base in bases[:-1]}.issubset(closed):
                return None
            there = [name for name in (*closed, *SMALL_FILES) if f"/data/{directory}/{name}" in found]
            copied |= {f"{directory}/{name}": found[f"/data/{directory}/{name}"] for name in there}
            copied[active] = found[f"/data/{active}"][: part.active_size]
            copied[f"{directory}/{names.PARTITION_STATE_FILE}"] = at_the_cut(
                PartitionState.load(fs, f"/data/{directory}"), part.log_start, part.log_end
            ).encode()
            offsets[key] = bases[-1]
        if self.partitions.keys() & {*self.cuts.replaced()}:
            return None
        starts = {key: part.log_start for key, part in self.partitions.items() if part.log_start}
        copied[checkpoints.RECOVERY_POINT_CHECKPOINT] = checkpoints.encode_offsets(offsets)
        copied[checkpoints.LOG_START_CHECKPOINT] = checkpoints.encode_offsets(starts)
        copy = ForgetfulFileSystem()
        copy.load({f"/data/{name}": content for name, content in copied.items()})
        return copy


def logs_in(fs: ForgetfulFileSystem) -> dict[str, bytes]:
    """The ``.log`` files of a disk that a start would read, without empty ones."""
    return {path: content for path, content in fs.snapshot().items() if path.endswith(".log") and content}
