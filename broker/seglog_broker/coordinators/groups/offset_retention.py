"""When committed offsets expire."""

from collections.abc import Collection
from typing import NamedTuple

from seglog_broker.coordinators.groups.committed_offsets import NO_EXPIRY, CommittedOffset


class Retention(NamedTuple):
    """Decides when the committed offsets of a group expire, by Kafka's rules.

    While a group has members, offsets of topics that they read stay, and so do all while it is not known what they
    read. An empty group keeps its offsets for ``retention_ms`` from when it became empty; those of a group that never
    had members stay as long from when each was committed.
    """

    retention_ms: int
    is_empty: bool
    empty_since_ms: int | None
    """None: it never had members."""
    read_topics: Collection[str] | None
    """The topics that members read; None: not known."""

    def may_be_read(self, topic: str) -> bool:
        """True if members read the topic, or if it is not known what they read."""
        return not self.is_empty and (self.read_topics is None or topic in self.read_topics)

    def expires_ms(self, topic: str, committed: CommittedOffset) -> int | None:
        """When an offset expires, ms of the wall clock; None: not as things stand."""
        if self.may_be_read(topic):
            return None
        if committed.expires_ms != NO_EXPIRY:
            return committed.expires_ms
        if self.is_empty and self.empty_since_ms is not None:
            return max(self.empty_since_ms, committed.committed_ms) + self.retention_ms
        return committed.committed_ms + self.retention_ms
