"""Requests about groups, served as if they had come over the wire, by handlers in front of FakeGroups."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig
from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult
from seglog_broker.coordinators.groups.membership import (
    GroupDescription,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    SyncRequest,
    SyncResult,
)
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.context import Endpoint, RequestContext
from seglog_broker.listeners.usage import Usage
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX, ResponseMemory
from seglog_broker.security.authority import Authority
from seglog_broker.storage.directory.topic_registry import Topic, Topics
from seglog_protocol.access import Rules
from seglog_protocol.errors import InvalidGroupIdError, SeglogError, UnknownGroupError
from seglog_protocol.kafka import (
    read_request,
    read_request_header,
    read_response,
    write_request,
    write_response,
)
from seglog_protocol.kafka.structs import Request
from tests.logs import ManualClock
from tests.unit.broker.listeners.real_broker import open_session


class FakeGroups:
    """``asked`` has each call; ``error`` is raised by all of them. What has no answer prepared waits, or is empty."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.joined: JoinResult | None = None
        self.synced: SyncResult | None = None
        self.heartbeat_result: HeartbeatResult | None = None
        self.consumer_descriptions: dict[str, ConsumerGroupDescription] = {}
        self.left: list[LeaveResult] | None = None
        self.results: list[SeglogError | None] | None = None
        """Of ``commit``, ``delete`` and ``delete_offsets``; None: no errors."""
        self.offsets: dict[tuple[str, int], Committed] = {}
        self.descriptions: dict[str, GroupDescription] = {}
        self.is_waiting = trio.Event()
        self.cancelled = 0

    def _note(self, *call: Any) -> None:
        self.asked.append(call)
        if self.error is not None:
            raise self.error
        if call[1] == "":
            raise InvalidGroupIdError("the group id is empty", group="")

    async def _wait(self) -> Any:
        self.is_waiting.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled += 1
            raise

    def check(self, group: str, /) -> None:
        self._note("check", group)

    async def join(self, group: str, request: JoinRequest, /) -> JoinResult:
        self._note("join", group, request)
        return self.joined or await self._wait()

    async def consumer_heartbeat(self, group: str, request: ConsumerHeartbeat, _sees: object, /) -> HeartbeatResult:
        self._note("consumer_heartbeat", group, request)
        return self.heartbeat_result or await self._wait()

    def describe_consumer(self, group: str, /) -> ConsumerGroupDescription:
        self._note("describe_consumer", group)
        if group not in self.consumer_descriptions:
            raise UnknownGroupError(f"there is no group {group}", group=group)
        return self.consumer_descriptions[group]

    async def sync(self, group: str, request: SyncRequest, /) -> SyncResult:
        self._note("sync", group, request)
        return self.synced or await self._wait()

    def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None = None, /) -> None:
        self._note("heartbeat", group, member_id, generation, instance_id)

    async def leave(self, group: str, members: Sequence[LeavingMember], /) -> list[LeaveResult]:
        self._note("leave", group, list(members))
        if self.left is not None:
            return self.left
        return [LeaveResult(member.member_id, member.instance_id) for member in members]

    def check_named(self, group: str, /) -> None:
        if not group:
            raise InvalidGroupIdError("the group id is empty", group="")

    async def commit(
        self,
        group: str,
        committer: Committer,
        offsets: Sequence[OffsetToCommit],
        transaction: ProducerIdAndEpoch | None = None,
        /,
    ) -> list[SeglogError | None]:
        self._note("commit", group, committer, list(offsets), *([] if transaction is None else [transaction]))
        return self.results or [None] * len(offsets)

    def committed(
        self, group: str, partitions: Sequence[tuple[str, int]] | None, committer: Committer | None = None, /
    ) -> list[Committed]:
        self._note("committed", group, None if partitions is None else list(partitions), committer)
        if partitions is None:
            return [self.offsets[place] for place in sorted(self.offsets)]
        return [self.offsets.get(place, Committed(*place)) for place in partitions]

    def committed_topics(self, group: str, committer: Committer | None = None, /) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for item in self.committed(group, None, committer):
            found.setdefault(item.topic, []).append(item.partition)
        return found

    async def list_groups(self, after: str = "", limit: int | None = None, /) -> list[ListedGroup]:
        del after, limit
        if self.error is not None:
            raise self.error
        return self._listed()

    def _listed(self) -> list[ListedGroup]:
        return [
            ListedGroup(group.group, group.kind, group.state, group.protocol_type, len(group.members), 0)
            for _, group in sorted(self.descriptions.items())
        ]

    def describe(self, group: str, /) -> tuple[GroupDescription, ListedGroup]:
        self._note("describe", group)
        if group not in self.descriptions:
            raise UnknownGroupError(f"there is no group {group}", group=group)
        described = self.descriptions[group]
        listed = next(listed for listed in self._listed() if listed.group == group)
        return described, listed

    async def delete(self, groups: Sequence[str], /) -> list[SeglogError | None]:
        self._note("delete", list(groups))
        return self.results or [None] * len(groups)

    async def delete_offsets(self, group: str, partitions: Sequence[tuple[str, int]], /) -> list[SeglogError | None]:
        self._note("delete_offsets", group, list(partitions))
        return self.results or [None] * len(partitions)


TOPIC_IDS: Final = {"orders": "A" * 21 + "Q", "events": "B" * 21 + "A"}
PARTITIONS: Final = 2

ID_OF: Final = {name: id_bytes(topic_id) for name, topic_id in TOPIC_IDS.items()}


async def _added(*_: object, **__: object) -> None:
    """A group's partition, added to a transaction."""


def context_of(
    groups: FakeGroups, version: int, client_id: str | None = "app", response_bytes_max: int = RESPONSE_BYTES_MAX
) -> RequestContext:
    """The context of a request to a broker with two topics of two partitions."""
    topics = Topics({name: Topic(name, topic_id, PARTITIONS) for name, topic_id in TOPIC_IDS.items()})
    broker = SimpleNamespace(
        config=BrokerConfig(),
        live_config=LiveConfig(BrokerConfig()),
        authority=Authority(BrokerConfig(), Rules()),
        groups=groups,
        transactions=SimpleNamespace(check_producer=lambda *_: None, add_offsets=_added),
        directory=SimpleNamespace(registry=SimpleNamespace(topics=topics)),
        turn=trio.lowlevel.checkpoint,
        metrics=Metrics(),
        clock=ManualClock(),
    )
    memory = ResponseMemory()
    memory.response_bytes_max = response_bytes_max
    served = cast("Broker", broker)
    session = open_session(served)
    return RequestContext(
        served, Endpoint("here", 9092), version, client_id, "/192.0.2.7", memory.room(), session, Usage(served, session)
    )


def served_now(groups: FakeGroups, request: Request, version: int) -> Any:
    """The response of the synchronous handler; None if it defers to the other one."""
    handle_now = APIS[request.API_KEY].handle_now
    assert handle_now is not None
    return handle_now(context_of(groups, version), request)


async def serve(
    groups: FakeGroups,
    request: Request,
    version: int,
    *,
    client_id: str | None = "app",
    response_bytes_max: int = RESPONSE_BYTES_MAX,
) -> Any:
    """The response, as a client of this version reads it."""
    frame = memoryview(b"".join(write_request(1, client_id, request, version)))[4:]
    asked = read_request(read_request_header(frame), frame)
    context, api = context_of(groups, version, client_id, response_bytes_max), APIS[request.API_KEY]
    answered = None if api.handle_now is None else api.handle_now(context, asked)
    if answered is None:
        assert api.handle is not None
        answered = await api.handle(context, asked)
    sent = memoryview(b"".join(bytes(chunk) for chunk in write_response(1, answered, version)))[4:]
    return read_response(request.API_KEY, version, sent)[1]
