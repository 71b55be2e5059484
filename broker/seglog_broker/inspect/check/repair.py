"""Carries out the repairs that a check has planned for one partition.

Each step is atomic. After an interruption the next repair, which begins with a check of its own, does the rest.

The bytes of the log are never changed. Damaged ranges are copied into plain files beside their segment, which stay when
the segment is deleted, and are recorded in ``seglog-partition.json``, so that the broker skips them. The order matters,
because some files rely on others: first the copies, then the record of the damage, then the checksum that includes the
damage. The marker of the clean stop is removed before a recovery point is lowered. The read-only mark is removed last.
"""

from collections.abc import Iterator
from typing import Final

from seglog_broker.inspect.check.plan import RepairPlan
from seglog_broker.inspect.findings import Repaired
from seglog_broker.storage.io.copying import copy_range
from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.io.small_files import keep_copy
from seglog_broker.storage.log.partition_files import log_base
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, MalformedStateError, PartitionState
from seglog_broker.storage.log.recovery import SET_ASIDE_SUFFIX, remove_without_log, tidy_directory
from seglog_broker.storage.segment.checksum import checksum_path, measure_segment, write_segment_checksum
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT

_KEPT: Final = (f"/{PARTITION_METADATA_FILE}", f"/{LEADER_EPOCH_CHECKPOINT}")


def tidy(fs: FileSystem, path: str, *, is_clean: bool) -> Iterator[Repaired]:
    """Remove or complete files that a crash left, as a start does. Call it before the check. Raises OSError."""
    before = set(fs.list_directory(path))
    after = set(tidy_directory(fs, path))
    if is_clean:
        bases = {base for name in after if (base := log_base(name)) is not None}
        remove_without_log(fs, path, after, bases)
        after = set(fs.list_directory(path))
    fs.sync_directory(path)
    for name in sorted(before - after):
        is_swap = name.endswith(names.SWAP_SUFFIX)
        yield Repaired(f"{path}/{name}", "put in the place of its sources" if is_swap else "removed")


def repair_partition(fs: FileSystem, path: str, plan: RepairPlan) -> Iterator[Repaired]:
    """Carry out all repairs except lifting a read-only mark. Raises OSError if a step fails; earlier ones stay done."""
    for lost in plan.set_aside:
        yield _set_aside(fs, path, lost)
    yield from _keep_unreadable(fs, path, plan)
    if plan.saves_state and plan.state is not None:
        plan.state.save(fs, path)
        count = len(plan.state.damaged)
        ranges = "1 range" if count == 1 else f"{count} ranges"
        yield Repaired(f"{path}/{PARTITION_STATE_FILE}", f"has {ranges} of offsets that the broker skips")
    for wanted in plan.replace:
        write_file_atomically(fs, wanted.path, wanted.content)
        yield Repaired(wanted.path, wanted.what)
    for unwanted in plan.remove:
        fs.unlink(unwanted)
        yield Repaired(unwanted, "removed")
    if plan.remove:
        fs.sync_directory(path)
    for base in plan.cover:
        write_segment_checksum(fs, path, base, measure_segment(fs, path, base))
        yield Repaired(checksum_path(path, base), "written")
    for base in plan.rewrite or ():
        yield _rewrite(fs, path, base)


def _keep_unreadable(fs: FileSystem, path: str, plan: RepairPlan) -> Iterator[Repaired]:
    """Copy the files that are about to be replaced and that no record gives again."""
    going = {wanted.path for wanted in plan.replace if wanted.path.endswith(_KEPT)}
    if plan.saves_state:
        try:
            PartitionState.read(fs, path)
        except MalformedStateError:
            going.add(f"{path}/{PARTITION_STATE_FILE}")
    for name in sorted(going):
        if fs.exists(name):
            yield Repaired(name, keep_copy(fs, name))


def lift_read_only(fs: FileSystem, path: str, batches: int) -> Repaired:
    """Remove the read-only mark; ``batches`` is the number of batches that were verified before."""
    state = PartitionState.load(fs, path)
    state.read_only = None
    state.save(fs, path)
    what = f"the read-only mark is lifted: all {batches} batches are valid and on the disk"
    return Repaired(f"{path}/{PARTITION_STATE_FILE}", what)


def _set_aside(fs: FileSystem, path: str, lost: DamagedRange) -> Repaired:
    source = f"{path}/{names.segment_file_name(lost.segment, names.LOG_SUFFIX)}"
    target = f"{path}/{names.segment_file_name(lost.segment, SET_ASIDE_SUFFIX)}{lost.position}"
    copy_range(fs, source, target, lost.position, lost.end_position)
    return Repaired(target, f"has the damaged bytes {lost.position} to {lost.end_position - 1} of the segment")


def _rewrite(fs: FileSystem, path: str, base: int) -> Repaired:
    """Write the bytes of a ``.log`` into new blocks of the disk.

    After a failed fsync the pages in memory look clean whether or not they reached the disk, so reading them proves
    nothing. A successful fsync of a copy does.
    """
    log = f"{path}/{names.segment_file_name(base, names.LOG_SUFFIX)}"
    size = fs.stat(log).size
    copy_range(fs, log, log, 0, size)
    return Repaired(log, f"{size} bytes rewritten and flushed")
