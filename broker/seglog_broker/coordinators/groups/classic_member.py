"""A member of a classic group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES
from seglog_broker.coordinators.groups.membership import Answer


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member. Times are ms, ``last_seen_ms`` of the monotonic clock."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Mapping[str, bytes]
    """Metadata by the name of the assignor, the preferred one first."""
    last_seen_ms: int
    assignment: bytes = b""
    is_new: bool = False
    """It has not got a generation yet, so it does not send heartbeats."""
    join_answer: Answer | None = None
    """Waits for the next generation."""
    sync_answer: Answer | None = None
    """Waits for the leader's assignments."""

    @property
    def is_waiting(self) -> bool:
        """Whether a request of it waits, so that no heartbeat is expected."""
        return self.join_answer is not None or self.sync_answer is not None

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members."""
        said = sum(len(name) + len(metadata) for name, metadata in self.protocols.items())
        return MEMBER_BYTES + len(self.member_id) + len(self.client_id) + said + len(self.assignment)

    def supports_only(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether these are its protocols, with the same metadata and in the same order of preference."""
        return list(self.protocols.items()) == list(protocols.items())


def protocols_by_name(protocols: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
    """Of assignors that are named twice, the first counts."""
    named: dict[str, bytes] = {}
    for name, metadata in protocols:
        named.setdefault(name, metadata)
    return named
