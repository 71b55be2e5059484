"""A coordinator of one classic group in virtual time, whose records are durable at once."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.membership import JoinRequest, LeaveResult, LeavingMember, Limits, SyncRequest
from seglog_broker.coordinators.state_machine import Now, Outbox, Record
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka.compiler import message_writer
from seglog_protocol.kafka.messages import ConsumerProtocolSubscription, GroupMetadataKey, GroupMetadataValue
from seglog_protocol.steps import finished
from tests.unit.broker.coordinators.groups.consumer_coordinator import VirtualTime

SESSION_MS = 10_000
REBALANCE_MS = 60_000
Protocols = Sequence[tuple[str, bytes]]


def subscription(*topics: str, version: int = 3, user_data: bytes | None = None) -> bytes:
    """The metadata of a consumer that reads ``topics``."""
    chunk = bytearray(version.to_bytes(2, "big"))
    message = ConsumerProtocolSubscription(topics=list(topics), user_data=user_data)
    chunks: list[Any] = []
    chunks.append(message_writer("ConsumerProtocolSubscription", version)(message, chunk, chunks))
    return b"".join(chunks)


RANGE: Protocols = (("range", subscription("orders")),)


class Asked:
    """A request, and its result as soon as there is one."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def __call__(self, result: Any, /) -> None:
        assert not self.results, f"answered twice: {self.results[0]}, {result}"
        self.results.append(result)

    @property
    def is_waiting(self) -> bool:
        return not self.results

    @property
    def result(self) -> Any:
        """The result that came without an error."""
        assert self.results, "no answer yet"
        assert self.results[0].error is None, self.results[0]
        return self.results[0]

    @property
    def error(self) -> SeglogError:
        """The error that it came with."""
        assert self.results, "no answer yet"
        error: SeglogError | None = self.results[0].error
        assert error is not None, self.results[0]
        return error


def restore(group: ClassicGroup, value: GroupMetadataValue, now: Now) -> None:
    """Have a new group be as its last record has it."""
    finished(group.replay(Record(GroupMetadataKey(group=group.key), 2, value)))
    group.restored(now)


class Coordinator(VirtualTime):
    """A classic group: what goes in comes with the virtual time, what comes out is kept (``records``) or answered."""

    def __init__(self, value: GroupMetadataValue | None = None, **limits: Any) -> None:
        super().__init__()
        self.limits = Limits(**{"initial_rebalance_delay_ms": 0, **limits})
        self.ids = count(1)
        self.records: list[GroupMetadataValue] = []
        self.group: ClassicGroup = ClassicGroup("workers", self.outbox, lambda: self.limits, self.new_id)
        if value is not None:
            restore(self.group, value, self.now)

    def new_id(self) -> str:
        return str(next(self.ids))

    def join(
        self, member_id: str = "", *, session_ms: int = SESSION_MS, rebalance_ms: int = REBALANCE_MS, **changes: Any
    ) -> Asked:
        asked = Asked()
        request = JoinRequest(
            member_id,
            None,
            "app",
            "/10.0.0.1",
            session_ms,
            rebalance_ms,
            "consumer",
            RANGE,
            needs_known_member_id=False,
        )
        self.group.join(request._replace(**changes), asked, self.now)
        self.deliver()
        return asked

    def sync(self, member_id: str, generation: int | None = None, **changes: Any) -> Asked:
        asked = Asked()
        request = SyncRequest(member_id, self.group.generation if generation is None else generation)
        self.group.sync(request._replace(**changes), asked, self.now)
        self.deliver()
        return asked

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> None:
        generation = self.group.generation if generation is None else generation
        self.group.heartbeat(member_id, generation, instance_id, self.now)

    def leave(self, *members: LeavingMember) -> list[LeaveResult]:
        results = self.group.leave(members, self.now)
        self.deliver()
        return results

    def commit(self, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> None:
        self.group.check_commit(member_id, generation, instance_id, self.now)

    def live_for(self, ms: int, *members: str) -> None:
        """Let so many ms pass, while these members heartbeat every second."""
        for _ in range(ms // 1_000):
            self.pass_time(1_000)
            for member_id in members:
                self.heartbeat(member_id)

    def keep(self, taken: Outbox) -> None:
        for record in taken.records:
            assert record.key.group == "workers"  # type: ignore[attr-defined]
            assert (record.key_version, record.value_version) == (2, 3)
            assert isinstance(record.value, GroupMetadataValue)
            self.records.append(record.value)

    def stable(self, *instances: str | None, protocols: Protocols = RANGE, **options: Any) -> list[str]:
        """Have a consumer join for each instance id, None for a dynamic member; all sync. The ids; the first leads.

        Member ``app-1`` is assigned ``b"app-1 has it"``.
        """
        ids: list[str] = []
        for instance_id in instances:
            asked = self.join(instance_id=instance_id, protocols=protocols, **options)
            for number, member_id in enumerate(ids):
                self.join(member_id, instance_id=instances[number], protocols=protocols, **options)
            ids.append(asked.result.member_id)
        for number, member_id in enumerate(ids):
            assignments = {each: f"{each} has it".encode() for each in ids}
            self.sync(member_id, assignments={} if number else assignments, instance_id=instances[number])
        assert self.group.state == "Stable"
        assert self.group.leader == ids[0]
        return ids
