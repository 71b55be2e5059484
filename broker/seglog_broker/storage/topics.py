"""``seglog-topics.json``: which topics there are, with their ids, partition counts and configuration. It is the truth.

Partition directories are made after an entry is written and completed at the next start; a deletion writes the registry
first, with the topic's id among ``deleting``. So a crash at any point leaves either a topic whose directories are
completed, or directories that are known to be doomed; one that nobody knows of is set aside, never removed.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from seglog_broker.storage.filenames import is_id, why_invalid_topic
from seglog_broker.storage.filesystem import FileSystem, read_file, write_file_atomically
from seglog_protocol.errors import LogDirectoryError

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; ``config`` holds only what was set for it, as Kafka's texts, ``notes`` what its users should know."""

    name: str
    id: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class TopicRegistry:
    """The topics of one log directory, by name. Changes are on disk when ``save`` returns."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self.topics: dict[str, Topic] = {}
        self.deleting: list[str] = []  # ids of deleted topics whose directories may still be there

    def load(self) -> None:
        """Read the file. Raises LogDirectoryError when it makes no sense: without it nothing can be served rightly."""
        try:
            found: dict[str, Any] = json.loads(read_file(self._fs, self.path))
            topics = [Topic(**item) for item in found["topics"]]
            self.deleting = list(found.get("deleting", ()))
            problem = next(filter(None, map(_why_impossible, topics)), None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found, topics, problem = {"version": _VERSION}, [], str(error) or type(error).__name__
        if found.get("version") != _VERSION:
            problem = f"version {found.get('version')!r} is not known"
        if problem is not None:
            raise LogDirectoryError(
                f"{self.path} cannot be understood ({problem}); restore it from a backup, or move it away to have the "
                "topics adopted from their directories, without their configuration",
                path=self.path,
            )
        self.topics = {topic.name: topic for topic in topics}

    def save(self) -> None:
        """Replace the file; returns when it survives a power cut."""
        write_file_atomically(self._fs, self.path, self.content())

    def content(self, *, adding: Topic | None = None) -> bytes:
        """The whole file, with one topic more, or other, if given; for those who write it elsewhere than ``save``."""
        topics = ({**self.topics, adding.name: adding} if adding else self.topics).values()
        content = {
            "version": _VERSION,
            "topics": [asdict(topic) for topic in sorted(topics, key=lambda topic: topic.name)],
            "deleting": self.deleting,
        }
        return json.dumps(content, indent=1).encode() + b"\n"


def _why_impossible(topic: Topic) -> str | None:
    if why_invalid_topic(topic.name) or not is_id(topic.id) or topic.partitions < 1:
        return f"the entry of topic {topic.name!r} is not possible"
    return None
