"""Groups for the fake broker: ``broker.script = FakeGroups(broker).answer``."""

from dataclasses import dataclass, field
from typing import Any

from seglog_protocol import messages
from seglog_protocol.errors import UnknownGroupError
from seglog_protocol.kafka import messages as kafka
from seglog_protocol.kafka import read_request, read_request_header, write_response
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.unit.clients.fake_broker import Answer, FakeBroker

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def member(
    number: int, assignment: dict[str, list[int]] | None = None, instance_id: str | None = None
) -> messages.DescribedMember:
    assigned = [messages.DescribedPartitions(topic, partitions) for topic, partitions in (assignment or {}).items()]
    host = f"/10.0.0.{number}"
    return messages.DescribedMember(
        f"member-{number}", f"worker-{number}", host, 45_000, 1_500, instance_id, assignment=assigned
    )


@dataclass
class FakeGroup:
    offsets: dict[tuple[str, int], messages.CommittedOffset] = field(default_factory=dict)
    members: list[messages.DescribedMember] = field(default_factory=list)
    empty_since_ms: int | None = None
    expires_ms: int | None = None

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"


class FakeGroups:
    """``page`` is how many groups a reply lists; ``lags`` has what is known of a partition beside its ends."""

    def __init__(self, broker: FakeBroker, *, page: int = 100) -> None:
        self.broker = broker
        self.page = page
        self.groups: dict[str, FakeGroup] = {}
        self.lags: dict[tuple[str, int], messages.LagResult] = {}

    def commit(self, name: str, topic: str, partition: int, offset: int, metadata: str | None = None) -> None:
        group = self.groups.setdefault(name, FakeGroup())
        group.offsets[topic, partition] = messages.CommittedOffset(
            topic, partition, offset, None, metadata, NOW_MS - DAY_MS, group.expires_ms
        )

    def committed(self, name: str) -> dict[tuple[str, int], int | None]:
        return {place: committed.offset for place, committed in self.groups[name].offsets.items()}

    def answer(self, request: messages.Request, payload: memoryview) -> Answer | None:
        match request:
            case messages.ListGroupsRequest():
                return self._list(request)
            case messages.DescribeGroupRequest():
                return self._describe(request.group)
            case messages.CommittedOffsetsRequest():
                known = self.groups.get(request.group, FakeGroup()).offsets
                return messages.CommittedOffsetsReply([known[place] for place in sorted(known)], NOW_MS)
            case messages.LagRequest():
                noted = [self.lags.get((each.topic, each.partition)) for each in request.partitions]
                pairs = zip(noted, request.partitions, strict=True)
                return messages.LagReply([lag or self.broker.lag(asked) for lag, asked in pairs], NOW_MS)
            case messages.CommitOffsetsRequest():
                for asked in request.offsets:
                    self.commit(request.group, asked.topic, asked.partition, asked.offset, asked.metadata)
                return messages.CommitOffsetsReply(
                    [messages.CommitOffsetResult(each.topic, each.partition) for each in request.offsets]
                )
            case messages.KafkaRequest():
                header = read_request_header(payload)
                asked_for = read_request(header, payload)
                is_whole = isinstance(asked_for, kafka.DeleteGroupsRequest)
                response = self._delete(asked_for) if is_whole else self._delete_offsets(asked_for)
                return messages.KafkaReply(), b"".join(write_response(0, response, header.version))[4:]
        return None

    def _list(self, request: messages.ListGroupsRequest) -> messages.ListGroupsReply:
        names = [name for name in sorted(self.groups) if name > (request.after or "")]
        listed = [
            messages.ListedGroup(
                name, "classic", group.state, "consumer", len(group.members), len(group.offsets), group.expires_ms
            )
            for name in names[: self.page]
            for group in (self.groups[name],)
        ]
        return messages.ListGroupsReply(listed, NOW_MS, len(names) > self.page)

    def _describe(self, name: str) -> Answer:
        group = self.groups.get(name)
        if group is None:
            return self._unknown(name)
        return messages.DescribeGroupReply(
            name,
            "classic",
            group.state,
            4,
            "consumer",
            "range" if group.members else "",
            group.members[0].member_id if group.members else "",
            group.members,
            NOW_MS,
            group.empty_since_ms,
            group.expires_ms,
        )

    def _delete(self, request: Any) -> kafka.DeleteGroupsResponse:
        response = kafka.DeleteGroupsResponse()
        for name in request.groups_names:
            result = response.DeletableGroupResult(group_id=name)
            response.results.append(result)
            if name not in self.groups:
                result.error_code, result.error_message = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name}"
            elif self.groups[name].members:
                result.error_code, result.error_message = ErrorCode.NON_EMPTY_GROUP, f"group {name} has members"
            else:
                del self.groups[name]
        return response

    def _delete_offsets(self, request: Any) -> kafka.OffsetDeleteResponse:
        group = self.groups[request.group_id]
        read = {assigned.topic for each in group.members for assigned in each.assignment or ()}
        response = kafka.OffsetDeleteResponse()
        for topic in request.topics:
            answered = response.OffsetDeleteResponseTopic(name=topic.name, partitions=[])
            response.topics.append(answered)
            for asked in topic.partitions:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic.name in read else ErrorCode.NONE
                number = asked.partition_index
                answered.partitions.append(
                    response.OffsetDeleteResponsePartition(partition_index=number, error_code=code)
                )
                if not code:
                    del group.offsets[topic.name, number]
        return response

    @staticmethod
    def _unknown(name: str) -> UnknownGroupError:
        return UnknownGroupError(f"there is no group {name}", group=name)
