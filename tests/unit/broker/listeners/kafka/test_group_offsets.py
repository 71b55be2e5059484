"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit in all versions: what is asked, and what answered."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.groups.topics import NO_ID
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.group_requests import (
    ID_OF,
    FakeGroups,
    serve,
    served_now,
)

FETCH_VERSIONS = range(1, 11)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NO_GROUP = errors.UnknownGroupError("none")


# --- OffsetCommit -----------------------------------------------------------------------------------------------------


def commit_request(places: Mapping[str, Sequence[int]], cls: Any = messages.OffsetCommitRequest, **more: Any) -> Any:
    """A commit of a member; partition n has the offset 10 + n."""
    topic, partition = (getattr(cls, f"{cls.__name__}{kind}") for kind in ("Topic", "Partition"))

    def place(number: int) -> Any:
        offset = {"committed_offset": 10 + number, "committed_leader_epoch": 4}
        return partition(partition_index=number, committed_metadata="note" if number == 0 else None, **offset)

    topics = [
        topic(name=name, topic_id=ID_OF.get(name, b"?" * 16), partitions=list(map(place, numbers)))
        for name, numbers in places.items()
    ]
    member = {"generation_id_or_member_epoch": 3, "member_id": "m-1", "group_instance_id": "i-1"}
    return cls(**{"group_id": "g", "topics": topics, **member, **more})


def codes(told: Any) -> dict[str, list[tuple[int, int]]]:
    names = {id_: name for name, id_ in ID_OF.items()}
    return {
        topic.name or names.get(topic.topic_id, "lost"): [(p.partition_index, p.error_code) for p in topic.partitions]
        for topic in told.topics
    }


COMMIT, COMMIT_IN_TRANSACTION = messages.OffsetCommitRequest, messages.TxnOffsetCommitRequest
SINCE: dict[Any, tuple[int, ...]] = {COMMIT: (10, 6, 7, 2), COMMIT_IN_TRANSACTION: (6, 2, 3, 3)}
"""The versions that have ids of topics, leader epochs, instance ids, and members at all."""
TRANSACTION = {"transactional_id": "app", "producer_id": 7, "producer_epoch": 2}
COMMITS = [(cls, version) for cls in SINCE for version in cls.VERSIONS if version >= 2 or cls is COMMIT_IN_TRANSACTION]


@each_case(("cls", "version"), COMMITS)
async def test_offsets_are_committed_each_with_its_own_result(cls: Any, version: int) -> None:
    groups = FakeGroups()
    has_ids, has_epochs, has_instances, has_members = (version >= since for since in SINCE[cls])
    epoch = 4 if has_epochs else -1
    lost = [] if has_ids else [OffsetToCommit("lost", 1, 11, epoch, "")]
    groups.results = [None, errors.MetadataTooLargeError("long"), *[errors.UnknownTopicError("lost") for _ in lost]]
    in_transaction = cls is COMMIT_IN_TRANSACTION
    asked = commit_request({"orders": [0, 1], "lost": [1]}, cls, **(TRANSACTION if in_transaction else {}))
    told = await serve(groups, asked, version)
    who = Committer("m-1", 3, "i-1" if has_instances else None) if has_members else Committer()
    offsets = [OffsetToCommit("orders", 0, 10, epoch, "note"), OffsetToCommit("orders", 1, 11, epoch, ""), *lost]
    assert groups.asked == [("commit", "g", who, offsets, *([ProducerIdAndEpoch(7, 2)] if in_transaction else []))]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(told) == {"orders": [(0, 0), (1, ErrorCode.OFFSET_METADATA_TOO_LARGE)], "lost": [(1, unknown)]}


# --- OffsetFetch ------------------------------------------------------------------------------------------------------


def fetch_request(places: dict[str, list[int]] | None, *names: str) -> messages.OffsetFetchRequest:
    """What groups (``g``, if none are named) have committed."""
    cls = messages.OffsetFetchRequest
    old = [cls.OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in (places or {}).items()]
    topics = [
        cls.OffsetFetchRequestTopics(name=t, topic_id=ID_OF.get(t, b"?" * 16), partition_indexes=p)
        for t, p in (places or {}).items()
    ]
    if places is None:
        old = topics = None  # type: ignore[assignment]
    groups = [cls.OffsetFetchRequestGroup(group_id=name, topics=topics) for name in names or ("g",)]
    return cls(group_id="g", topics=old, groups=groups)


def places_of(topics: Any, version: int) -> dict[str, list[tuple[Any, ...]]]:
    """Partition, offset, leader epoch, metadata and error by topic."""
    names = {topic_id: name for name, topic_id in ID_OF.items()}
    return {
        (names.get(topic.topic_id, "?") if version >= 10 else topic.name): [
            (p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
            for p in topic.partitions
        ]
        for topic in topics
    }


def fetched(told: Any, version: int) -> dict[str, list[tuple[Any, ...]]]:
    return places_of(told.groups[0].topics if version >= 8 else told.topics, version)


def group_code_of(told: Any, version: int) -> int:
    return int(told.groups[0].error_code if version >= 8 else told.error_code)


@pytest.fixture
def groups() -> FakeGroups:
    groups = FakeGroups()
    for item in (Committed("events", 1, 7), Committed("gone", 0, 5), Committed("orders", 0, 3, 2, "note")):
        groups.offsets[item.topic, item.partition] = item._replace(committed_ms=1)
    return groups


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_named_offsets_are_found_or_there_is_none(groups: FakeGroups, version: int) -> None:
    told = await serve(groups, fetch_request({"orders": [0, 1], "events": [1]}), version)
    assert group_code_of(told, version) == 0
    epoch = 2 if version >= 5 else -1
    assert fetched(told, version) == {
        "orders": [(0, 3, epoch, "note", 0), (1, -1, -1, "", 0)],
        "events": [(1, 7, -1, "", 0)],
    }
    assert [call[2:] for call in groups.asked] == [([("orders", 0), ("orders", 1)], None), ([("events", 1)], None)]


@pytest.mark.parametrize("version", FETCH_VERSIONS[1:])
async def test_all_offsets_are_found(groups: FakeGroups, version: int) -> None:
    told = await serve(groups, fetch_request(None), version)
    found = fetched(told, version)
    assert found.pop("gone", None) == ([(0, 5, -1, "", 0)] if version < 10 else None), "it has no id any more"
    epoch = 2 if version >= 5 else -1
    assert found == {"events": [(1, 7, -1, "", 0)], "orders": [(0, 3, epoch, "note", 0)]}
    assert groups.asked[0] == ("committed", "g", None, None)


async def test_an_offset_below_0_is_among_all_that_was_committed(groups: FakeGroups) -> None:
    groups.offsets = {("orders", n): Committed("orders", n, ~n, committed_ms=1) for n in range(2)}
    told = await serve(groups, fetch_request(None), 8)
    assert fetched(told, 8) == {"orders": [(0, -1, -1, "", 0), (1, -2, -1, "", 0)]}


@pytest.mark.parametrize("is_stable_wanted", [False, True])
@pytest.mark.parametrize("places", [None, {"orders": [0], "events": [1]}])
@pytest.mark.parametrize("version", FETCH_VERSIONS[-4:])
async def test_where_a_transaction_is_open_stable_offsets_are_not_to_be_had_yet(
    groups: FakeGroups, version: int, places: dict[str, list[int]] | None, is_stable_wanted: bool
) -> None:
    groups.offsets["orders", 0] = groups.offsets["orders", 0]._replace(is_unstable=True)
    request = fetch_request(places)
    request.require_stable = is_stable_wanted
    told = await serve(groups, request, version)
    assert group_code_of(told, version) == 0
    found = fetched(told, version)
    unstable = (0, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert found["orders"] == [unstable if is_stable_wanted else (0, 3, 2, "note", 0)]
    assert found["events"] == [(1, 7, -1, "", 0)]


@pytest.mark.parametrize("version", [1, 2, 8])
async def test_an_error_of_the_group_stands_where_clients_look_for_it(groups: FakeGroups, version: int) -> None:
    assert fetched(await serve(groups, fetch_request({}), version), version) == {}
    assert groups.asked == [("committed", "g", [], None)], "no partitions are named, but the group is looked at"
    groups.error = errors.CoordinatorLoadingError("loading")
    told = await serve(groups, fetch_request({"orders": [0, 1]}), version)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if version == 1:
        assert fetched(told, version) == {"orders": [(0, -1, -1, "", loading), (1, -1, -1, "", loading)]}
    else:
        assert group_code_of(told, version) == loading
        assert fetched(told, version) == {}


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_several_groups_are_answered_each_with_its_own_error(groups: FakeGroups, version: int) -> None:
    told = await serve(groups, fetch_request({"orders": [0]}, "g", "", "h"), version)
    assert [(group.group_id, group.error_code, len(group.topics)) for group in told.groups] == [
        ("g", 0, 1),
        ("", ErrorCode.INVALID_GROUP_ID, 0),
        ("h", 0, 1),
    ]


async def test_an_unknown_topic_id_is_named_as_such(groups: FakeGroups) -> None:
    told = await serve(groups, fetch_request({"lost": [0, 3], "orders": [0]}), 10)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert fetched(told, 10) == {
        "?": [(0, -1, -1, "", unknown), (3, -1, -1, "", unknown)],
        "orders": [(0, 3, 2, "note", 0)],
    }
    assert NO_ID not in [topic.topic_id for topic in told.groups[0].topics]


@pytest.mark.parametrize("version", [1, 7, 8, 9])
async def test_very_many_partitions_are_looked_up_in_turns(groups: FakeGroups, version: int) -> None:
    request = fetch_request({"orders": list(range(1201))})
    assert served_now(groups, request, version) is None
    assert groups.asked == []
    told = await serve(groups, request, version)
    assert [place[0] for place in fetched(told, version)["orders"]] == list(range(1201))
    assert [len(call[2]) for call in groups.asked] == [500, 500, 201]


# --- OffsetDelete -----------------------------------------------------------------------------------------------------


def delete_request(places: dict[str, list[int]]) -> messages.OffsetDeleteRequest:
    cls = messages.OffsetDeleteRequest
    topics = [
        cls.OffsetDeleteRequestTopic(
            name=topic, partitions=[cls.OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
        )
        for topic, numbers in places.items()
    ]
    return cls(group_id="g", topics=topics)


async def test_offsets_are_deleted_each_with_its_own_result() -> None:
    groups = FakeGroups()
    groups.results = [None, errors.GroupSubscribedError("read")]
    told = await serve(groups, delete_request({"orders": [0, 9], "lost": [0], "events": [1]}), 0)
    assert groups.asked == [("delete_offsets", "g", [("orders", 0), ("events", 1)])]
    assert told.error_code == 0
    assert {topic.name: [(p.partition_index, p.error_code) for p in topic.partitions] for topic in told.topics} == {
        "orders": [(0, 0), (9, UNKNOWN)],
        "lost": [(0, UNKNOWN)],
        "events": [(1, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)],
    }


@each_case("places", [{"orders": [0]}, {"lost": [0]}, {}])
async def test_a_group_that_cannot_forget_has_one_error(places: dict[str, list[int]]) -> None:
    groups = FakeGroups()
    groups.error = NO_GROUP
    told = await serve(groups, delete_request(places), 0)
    assert (told.error_code, told.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


# --- Many times, and too much -----------------------------------------------------------------------------------------


def groups_request(*asked: tuple[str, dict[str, list[int]] | None]) -> messages.OffsetFetchRequest:
    groups = [fetch_request(places, group).groups[0] for group, places in asked]
    return messages.OffsetFetchRequest(groups=groups)


@pytest.mark.parametrize("version", [8, 9])
async def test_a_group_that_is_named_many_times_is_answered_once(groups: FakeGroups, version: int) -> None:
    """A real Kafka answers each time: so 200 names in a request made an answer of 4 GB."""
    every = ("g", None)
    told = await serve(groups, groups_request(*[every] * 200, ("g", {"orders": [0]})), version)
    assert [group.group_id for group in told.groups] == ["g"]
    some = [
        ("g", {"orders": [0]}),
        ("g", {"orders": [1]}),
        ("g", {"orders": [0]}),
        every,
        every,
        ("h", {"orders": [0]}),
    ]
    told = await serve(groups, groups_request(*some), version)
    assert [(group.group_id, sum(len(topic.partitions) for topic in group.topics)) for group in told.groups] == [
        ("g", 1),
        ("g", 1),
        ("g", 3),
        ("h", 1),
    ]


@pytest.mark.parametrize("version", [8, 9])
async def test_offsets_that_do_not_fit_a_response_are_refused_group_by_group(groups: FakeGroups, version: int) -> None:
    asked = groups_request(("g", {"orders": [0]}), ("h", {"orders": [*range(100)]}))
    told = await serve(groups, asked, version, response_bytes_max=2_000)
    assert [(group.group_id, group.error_code, len(group.topics)) for group in told.groups] == [
        ("g", 0, 1),
        ("h", ErrorCode.INVALID_REQUEST, 0),
    ]


# --- Errors of TxnOffsetCommit ---------------------------------------------------------------------------------------


def in_transaction(places: Mapping[str, Sequence[int]], group: str = "g") -> Any:
    return commit_request(places, COMMIT_IN_TRANSACTION, **TRANSACTION, group_id=group)


async def test_a_commit_of_nothing_asks_for_nothing_and_a_group_without_a_name_is_refused(groups: FakeGroups) -> None:
    assert (await serve(groups, in_transaction({}), 6)).topics == []
    assert groups.asked == []
    told = await serve(groups, in_transaction({"orders": [0]}, ""), 6)
    assert codes(told) == {"orders": [(0, ErrorCode.INVALID_GROUP_ID)]}


@each_case("version", COMMIT_IN_TRANSACTION.VERSIONS)
@each_case(
    ("error", "code", "since", "code_before"),
    [
        (errors.InvalidTransactionStateError("x"), ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.INVALID_TXN_STATE),
        (errors.InvalidProducerEpochError("x"), ErrorCode.INVALID_PRODUCER_EPOCH, 0, None),
        (errors.StaleMemberEpochError("x"), ErrorCode.STALE_MEMBER_EPOCH, 6, ErrorCode.ILLEGAL_GENERATION),
        (
            errors.CoordinatorLoadingError("x"),
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            2,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ),
        (errors.MessageTooLargeError("x"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE, 0, None),
    ],
)
async def test_an_error_is_one_of_every_offset_with_a_code_that_the_version_knows(
    error: errors.SeglogError, code: ErrorCode, since: int, code_before: ErrorCode | None, version: int
) -> None:
    groups = FakeGroups()
    groups.error = error
    told = await serve(groups, in_transaction({"orders": [0, 1]}), version)
    if version < since and code_before is not None:
        code = code_before
    assert codes(told) == {"orders": [(0, code), (1, code)]}
