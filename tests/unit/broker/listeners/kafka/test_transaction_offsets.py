"""TxnOffsetCommit in all its versions: what is asked of groups, and what is answered."""

from typing import Any

from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.fake_groups import FakeGroups
from tests.unit.broker.listeners.kafka.group_requests import ID_OF, Places, places_to_commit, serve

VERSIONS = range(7)


def request_of(version: int, places: Places, group: str = "g") -> messages.TxnOffsetCommitRequest:
    """A commit in a transaction."""
    cls = messages.TxnOffsetCommitRequest
    topic, partition = cls.TxnOffsetCommitRequestTopic, cls.TxnOffsetCommitRequestPartition
    member: dict[str, Any] = {}
    if version >= 3:
        member = {"member_id": "m-1", "generation_id_or_member_epoch": 3, "group_instance_id": "i-1"}
    topics = places_to_commit(topic, partition, places, by_id=version >= 6, has_epoch=version >= 2)
    return cls(transactional_id="app", group_id=group, producer_id=7, producer_epoch=2, topics=topics, **member)


def codes(told: Any) -> dict[str, list[tuple[int, int]]]:
    names = {id_: name for name, id_ in ID_OF.items()}
    return {
        topic.name or names.get(topic.topic_id, "lost"): [(p.partition_index, p.error_code) for p in topic.partitions]
        for topic in told.topics
    }


@each_case("version", VERSIONS)
async def test_offsets_are_committed_in_the_transaction_each_with_its_own_result(version: int) -> None:
    groups = FakeGroups()
    is_named = version < 6
    lost = [OffsetToCommit("lost", 1, 11, 4 if version >= 2 else -1, "")] if is_named else []
    groups.results = [None, errors.MetadataTooLargeError("long"), *[errors.UnknownTopicError("lost") for _ in lost]]
    told = await serve(groups, request_of(version, {"orders": [0, 1], "lost": [1]}), version)
    epoch = 4 if version >= 2 else -1
    assert groups.asked == [
        (
            "commit",
            "g",
            Committer("m-1", 3, "i-1") if version >= 3 else Committer(),
            [
                OffsetToCommit("orders", 0, 10, epoch, "note"),
                OffsetToCommit("orders", 1, 11, epoch, ""),
                *lost,
            ],
            ProducerIdAndEpoch(7, 2),
        )
    ]
    large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_named else ErrorCode.UNKNOWN_TOPIC_ID
    assert codes(told) == {"orders": [(0, 0), (1, large)], "lost": [(1, unknown)]}


@each_case("version", VERSIONS)
async def test_a_commit_of_nothing_asks_for_nothing(version: int) -> None:
    groups = FakeGroups()
    assert (await serve(groups, request_of(version, {}), version)).topics == []
    assert groups.asked == []


@each_case("version", VERSIONS)
async def test_a_group_without_a_name_is_refused(version: int) -> None:
    told = await serve(FakeGroups(), request_of(version, {"orders": [0]}, ""), version)
    assert codes(told) == {"orders": [(0, ErrorCode.INVALID_GROUP_ID)]}


@each_case("version", VERSIONS)
@each_case(
    ("error", "code", "since", "code_before"),
    [
        (errors.InvalidTransactionStateError("x"), ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.INVALID_TXN_STATE),
        (errors.InvalidProducerEpochError("x"), ErrorCode.INVALID_PRODUCER_EPOCH, 0, None),
        (errors.IllegalGenerationError("x"), ErrorCode.ILLEGAL_GENERATION, 0, None),
        (errors.StaleMemberEpochError("x"), ErrorCode.STALE_MEMBER_EPOCH, 6, ErrorCode.ILLEGAL_GENERATION),
        (errors.UnknownMemberError("x"), ErrorCode.UNKNOWN_MEMBER_ID, 0, None),
        (errors.FencedInstanceError("x"), ErrorCode.FENCED_INSTANCE_ID, 0, None),
        (
            errors.CoordinatorLoadingError("x"),
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            2,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
        (errors.DiskFullError("x"), ErrorCode.COORDINATOR_NOT_AVAILABLE, 0, None),
        (errors.MessageTooLargeError("x"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE, 0, None),
    ],
)
async def test_an_error_is_one_of_every_offset_with_a_code_that_the_version_knows(
    error: errors.SeglogError, code: ErrorCode, since: int, code_before: ErrorCode | None, version: int
) -> None:
    groups = FakeGroups()
    groups.error = error
    told = await serve(groups, request_of(version, {"orders": [0, 1]}), version)
    if version < since and code_before is not None:
        code = code_before
    assert codes(told) == {"orders": [(0, code), (1, code)]}
