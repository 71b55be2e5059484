"""Names in a log directory: its own files and the partition directories.

Names inside a partition directory are in ``seglog_protocol.segment_files``, because others read those too.
"""

import re
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from seglog_protocol import checkpoint_files as checkpoints

LOCK_FILE: Final = ".lock"
META_PROPERTIES_FILE: Final = "meta.properties"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
CLEAN_PARTITIONS_FILE: Final = "seglog-clean-partitions"
REGISTRY_FILE: Final = "seglog-topics.json"
CREATION_FILE: Final = "seglog-creation.json"
FORMAT_FILE: Final = "seglog-format"
BALLAST_FILE: Final = "seglog-ballast"
SPARE_FILES: Final = tuple(f"seglog-spare-inode-{number}" for number in range(1, 9))
"""Empty files, each of which keeps an inode: what a stop writes to the log directory takes no more."""
PRODUCER_IDS_FILE: Final = "seglog-producer-ids.json"
CLOCK_FILE: Final = "seglog-clock.json"
DYNAMIC_CONFIGS_FILE: Final = "seglog-configs.json"
ACCOUNTS_FILE: Final = "seglog-accounts.json"
ACLS_FILE: Final = "seglog-acls.json"
FENCING_FILE: Final = "seglog-fencing"
"""There from a restore until transactional ids are fenced; see ``storage/directory/identity.py``."""
RESTORE_FILE: Final = "seglog-restore.json"
"""From which backup segments are still to be fetched; see ``storage/directory/restored_from.py``."""
PARTITION_METADATA_FILE: Final = "partition.metadata"
BACKUP_SOCKET: Final = "seglog-backup.sock"
"""Where a running broker is asked for a snapshot; see ``tasks/snapshots.py``."""
STANDBY_SOCKET: Final = "seglog-standby.sock"
"""Where a standby is asked for its state, and to be promoted; see ``standby.py``."""
SNAPSHOT_FILE: Final = "seglog-snapshot.json"
"""In the directory of a snapshot: see ``storage/directory/snapshot.py``."""
SNAPSHOT_TOPIC: Final = "seglog-snapshot"
"""Snapshots have the name of a deleted partition of this topic, so that every start, also of Kafka, removes them."""

SKIPPED_DIRECTORIES: Final = frozenset({"remote-log-index-cache", "__cluster_metadata-0"})
"""Directories of Kafka's that Kafka does not load as partitions, and seglog neither."""

_NEIGHBOURS: Final = re.compile(
    r"lost\+found|System Volume Information|\$RECYCLE\.BIN|[@#]\S+|\.\.(data(_tmp)?|\d{4}_\S+)"
    r"|\.(snapshots?|zfs|DS_Store|Trash(-\d+|es)?|nfs[0-9a-f]+|fuse_hidden\S+|fseventsd|Spotlight-V100|TemporaryItems"
    r"|DocumentRevisions-V100|AppleDouble|@__thumb)"
)
"""What file systems, Kubernetes, NAS and desktops put into a root: left alone, and no sign of another owner."""

OFFSET_CHECKPOINTS: Final = (
    checkpoints.RECOVERY_POINT_CHECKPOINT,
    checkpoints.LOG_START_CHECKPOINT,
    checkpoints.HIGH_WATERMARK_CHECKPOINT,
    checkpoints.CLEANER_CHECKPOINT,
)

OWN_FILES: Final = frozenset(
    {
        REGISTRY_FILE,
        FORMAT_FILE,
        PRODUCER_IDS_FILE,
        CLOCK_FILE,
        DYNAMIC_CONFIGS_FILE,
        ACCOUNTS_FILE,
        ACLS_FILE,
        CREATION_FILE,
        FENCING_FILE,
        *OFFSET_CHECKPOINTS,
    }
)
"""Files that only log directories have."""

REPLACED_FILES: Final = OWN_FILES | {META_PROPERTIES_FILE, CLEAN_SHUTDOWN_FILE, CLEAN_PARTITIONS_FILE}
"""Files that are replaced through a ``.tmp``; other ``.tmp`` files are left alone, like every unknown file."""

DELETE_MARKER: Final = "-delete"
STRAY_MARKER: Final = "-stray"
_MARKERS: Final = (DELETE_MARKER, STRAY_MARKER, "-future")
_FILE_NAME_MAX: Final = 255
TOPIC_NAME_MAX: Final = 249

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_MARKED = re.compile(r"(\S+-\S+)\.\S+(-delete|-stray|-future)")
_DELETED = re.compile(r"\.([0-9a-f]{32})-delete\Z")
_INT32_MAX: Final = 2**31 - 1
_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class PartitionDirectory(NamedTuple):
    """The parts of a partition directory's name; ``marker`` is "-delete", "-stray", "-future" or empty."""

    topic: str
    partition: int
    marker: str = ""


def why_invalid_topic(topic: str) -> str | None:
    """Why ``topic`` is not a valid topic name, as a sentence; None if it is valid."""
    if not topic:
        return "it is empty"
    if topic in (".", ".."):
        return "'.' and '..' are directories"
    if len(topic) > TOPIC_NAME_MAX:
        return f"it has {len(topic)} characters, at most {TOPIC_NAME_MAX} are possible"
    if not _TOPIC.fullmatch(topic):
        return "only letters a-z and A-Z, digits, '.', '_' and '-' are possible"
    return None


def is_neighbour(name: str) -> bool:
    """Whether a name in a root is one of ``_NEIGHBOURS``; ``.Trash-0`` could be a partition, too."""
    return _NEIGHBOURS.fullmatch(name) is not None


def partition_directory_name(topic: str, partition: int) -> str:
    """``commits-0``."""
    return f"{topic}-{partition}"


def marked_directory_name(topic: str, partition: int, unique: uuid.UUID, marker: str) -> str:
    """``commits-0.<32 hex>-delete``; a long topic is shortened so that the name has at most 255 characters."""
    suffix = f"-{partition}.{unique.hex}{marker}"
    return topic[: _FILE_NAME_MAX - len(suffix)] + suffix


def deleted_topic_id(name: str) -> str | None:
    """The id in the name of a directory that is marked ``-delete``; None for any other name.

    It is the topic's id if the name is the record of the topic's deletion (``TopicAdmin.record_deletion``). Otherwise
    it is a random id, which no topic has.
    """
    found = _DELETED.search(name)
    return None if found is None else new_id(uuid.UUID(hex=found[1]))


def parse_partition_directory(name: str) -> PartitionDirectory:
    """The parts of a directory's name, which is split at the last ``-``. Raises ValueError saying what is wrong."""
    marker = next((marker for marker in _MARKERS if name.endswith(marker)), "")
    plain = name
    if marker:
        if not _MARKED.fullmatch(name):
            raise ValueError(f"{name!r} ends in {marker} but is not TOPIC-PARTITION.ID{marker}")
        plain = name[: name.rindex(".")]
    topic, dash, partition = plain.rpartition("-")
    if not dash or not topic:
        raise ValueError(f"{name!r} is not TOPIC-PARTITION")
    if not partition.isascii() or not partition.isdigit() or int(partition) > _INT32_MAX:
        raise ValueError(f"{name!r} does not end in a partition number")
    return PartitionDirectory(topic, int(partition), marker)


def new_id(unique: uuid.UUID) -> str:
    """An id as Kafka writes it: 16 bytes in URL-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(unique.bytes).rstrip(b"=").decode()


def uuid_of(topic_id: str) -> uuid.UUID:
    """The reverse of ``new_id``."""
    return uuid.UUID(bytes=urlsafe_b64decode(f"{topic_id}=="))


def is_id(text: str) -> bool:
    """Whether ``text`` is an id as ``new_id`` returns it, other than the one of 16 zero bytes."""
    return _ID.fullmatch(text) is not None and any(urlsafe_b64decode(text + "=="))


def encode_partition_metadata(topic_id: str) -> bytes:
    """``partition.metadata``: two lines, no newline at the end."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def decode_partition_metadata(content: bytes) -> str:
    """The topic id in a ``partition.metadata``, padded or not, as Java reads it. ValueError when there is none."""
    fields = dict(re.split(r":\s+", line, maxsplit=1) for line in content.decode().splitlines() if ":" in line)
    topic_id = fields.get("topic_id", "").removesuffix("==")
    if not is_id(topic_id):
        raise ValueError(f"topic_id {topic_id!r} is not an id")
    return new_id(uuid_of(topic_id))
