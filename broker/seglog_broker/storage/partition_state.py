"""``seglog-partition.json``: what the broker must remember about a partition that no Kafka file has a place for.

A plain file in the partition directory, unknown to Kafka and therefore ignored by it. It is replaced as a whole (tmp,
fsync, rename), and a malformed one is treated as absent: everything in it can be found out again, except a read-only
mark, which is why that one is written at once.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from seglog_broker.storage.filesystem import FileSystem, read_file, write_file_atomically

PARTITION_STATE_FILE: Final = "seglog-partition.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets [start_offset, end_offset) that cannot be read, and the bytes of one segment that stand in their place.

    ``reason`` is "damaged" (bytes [position, end_position) are there and are no batches) or "missing" (nothing is
    there: both positions are the place of the hole).
    """

    start_offset: int
    end_offset: int
    segment: int
    position: int
    end_position: int
    reason: str = "damaged"


@dataclass(slots=True)
class PartitionState:
    """The remembered facts; times are wall clock milliseconds, None where unknown."""

    read_only: str | None = None  # why, or None
    damaged: list[DamagedRange] = field(default_factory=list)
    first_append_ms: int | None = None  # to the active segment
    last_append_ms: int | None = None
    log_start_reason: str | None = None  # why the log start last moved: "truncated", "expired"
    compacted_before: int = 0  # below this offset compaction has been at work: holes there are no loss

    def save(self, fs: FileSystem, directory: str) -> None:
        """Replace the file; returns when it survives a power cut."""
        content = json.dumps({"version": _VERSION} | asdict(self), indent=1).encode() + b"\n"
        write_file_atomically(fs, f"{directory}/{PARTITION_STATE_FILE}", content)

    @classmethod
    def load(cls, fs: FileSystem, directory: str) -> "PartitionState":
        """What the file says; an empty state when there is none or it makes no sense."""
        path = f"{directory}/{PARTITION_STATE_FILE}"
        if not fs.exists(path):
            return cls()
        try:
            found: dict[str, Any] = json.loads(read_file(fs, path))
            return cls(
                read_only=found.get("read_only"),
                damaged=[_damaged_range(item) for item in found.get("damaged", ())],
                first_append_ms=found.get("first_append_ms"),
                last_append_ms=found.get("last_append_ms"),
                log_start_reason=found.get("log_start_reason"),
                compacted_before=_offset(found.get("compacted_before", 0)),
            )
        except (ValueError, TypeError, AttributeError):
            return cls()


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no offset")
    return value


def _damaged_range(item: dict[str, Any]) -> DamagedRange:
    damage = DamagedRange(**item)
    if not all(isinstance(value, int) for name, value in asdict(damage).items() if name != "reason"):
        raise TypeError(f"{item} is no damaged range")
    return damage
