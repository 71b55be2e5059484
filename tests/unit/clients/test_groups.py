"""Groups as a program asks about them, with either face of the client."""

from datetime import UTC, datetime
from typing import Any

import pytest

from seglog.groups import Shift, parse_shift
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    GroupSubscribedError,
    NonEmptyGroupError,
    UnknownGroupError,
    UnknownTopicError,
)
from tests.support import each_case
from tests.unit.clients.faces import Face
from tests.unit.clients.fake_broker import Answer, FakeBroker
from tests.unit.clients.fake_groups import DAY_MS, NOW_MS, FakeGroups, member

TOPICS = {"t": 3, "u": 1}


def _filled(broker: FakeBroker) -> FakeGroups:
    """t-0 has the offsets 10 to 99, a second each; t-1 those from 0 to 4."""
    broker.logs["t"][0].latest = 90
    broker.logs["t"][0].append(encode_batch([(n * 1000, None, b"v", ()) for n in range(90, 100)]))
    broker.logs["t"][0].earliest = 10
    broker.logs["t"][1].append(encode_batch([(n * 1000, None, b"v", ()) for n in range(5)]))
    groups = FakeGroups(broker)
    broker.script = groups.answer
    return groups


async def test_all_pages_of_groups_are_listed(face: Face) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)
        groups.page = 2
        for number in range(5):
            groups.commit(f"g{number}", "t", 0, 1)
        found = await client.groups()
        assert [group.group for group in found] == ["g0", "g1", "g2", "g3", "g4"]
        assert (found[0].state, found[0].partitions) == ("Empty", 1)
        assert broker.asked(messages.ListGroupsRequest) == 3


async def test_a_description_has_lag_owners_and_partitions_without_an_offset(face: Face) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)
        groups.lags["t", 0] = messages.LagResult("t", 0, 10, 100, 100, NOW_MS - 600_000, lost_from_ms=NOW_MS + DAY_MS)
        groups.commit("app", "t", 0, 40, "by hand")
        groups.commit("app", "gone", 0, 7)
        groups.groups["app"].members = [member(1, {"t": [0, 1]}), member(2, {"t": [2]})]
        found = await client.describe_group("app")
        assert (found.group.state, len(found.members), found.records) == ("Stable", 2, 60)
        assert [(each.topic, each.partition, each.offset, each.member_id) for each in found.offsets] == [
            ("gone", 0, 7, None),
            ("t", 0, 40, "member-1"),
            ("t", 1, None, "member-1"),
            ("t", 2, None, "member-2"),
        ]
        gone, first, second, _ = found.offsets
        assert (gone.lag, type(gone.error)) == (None, UnknownTopicError)
        assert (first.lag.records, first.lag.seconds, first.lag.seconds_to_loss) == (60, 600.0, 86_400.0)
        assert (first.metadata, first.committed_ms, first.latest) == ("by hand", NOW_MS - DAY_MS, 100)
        assert (second.lag, second.latest) == (None, 5)
        with pytest.raises(UnknownGroupError, match="no group nobody"):
            await client.describe_group("nobody")
        assert await client.group_offsets("nobody") == []


RESETS = [
    ("earliest", [(0, 10, None), (1, 0, None), (2, 0, None)]),
    ("latest", [(0, 100, None), (1, 5, None), (2, 0, None)]),
    (50, [(0, 50, None), (1, 5, "50 is beyond the log end"), (2, 0, "50 is beyond the log end")]),
    ("3", [(0, 10, "3 is below the log start"), (1, 3, None), (2, 0, "3 is beyond the log end")]),
    (
        datetime.fromtimestamp(3, tz=UTC),
        [(0, 90, None), (1, 3, None), (2, 0, "no record is that new: the log end")],
    ),
    (
        "@95000",
        [(0, 95, None), (1, 5, "no record is that new: the log end"), (2, 0, "no record is that new: the log end")],
    ),
]


@pytest.mark.parametrize(
    ("to", "expected"), RESETS, ids=lambda value: str(value) if not isinstance(value, list) else ""
)
async def test_a_reset_is_limited_to_the_log_and_says_so(
    face: Face, to: Any, expected: list[tuple[int, int, str | None]]
) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)
        groups.commit("app", "t", 0, 40)
        resets = await client.reset_group("app", to, "t", dry_run=True)
        assert [(each.partition, each.after, each.note) for each in resets] == expected
        assert [each.before for each in resets] == [40, None, None]
        assert groups.committed("app") == {("t", 0): 40}, "a dry run commits nothing"
        assert broker.asked(messages.CommitOffsetsRequest) == 0
        assert await client.reset_group("app", to, "t") == resets
        assert groups.committed("app") == {("t", partition): after for partition, after, _ in expected}


async def test_a_shift_counts_from_what_is_committed(face: Face) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)
        groups.commit("app", "t", 0, 40)
        groups.commit("app", "t", 1, 2)
        resets = await client.reset_group("app", "-35")
        assert [(each.partition, each.asked, each.after) for each in resets] == [(0, 5, 10), (1, -33, 0)]
        await client.reset_group("app", Shift(4), {"t": [0]})
        assert groups.committed("app") == {("t", 0): 14, ("t", 1): 0}
        await client.reset_group("app", f"+{2**63 - 1}")
        assert groups.committed("app") == {("t", 0): 100, ("t", 1): 5}
        await client.reset_group("app", f"-{2**63 - 1}", {"t": [1]})
        with pytest.raises(ValueError, match=r"has committed nothing for t-2 that \+4 could count from"):
            await client.reset_group("app", "+4", {"t": [2]})


async def test_a_group_is_made_by_a_reset_and_nothing_is_reset_without_topics(face: Face) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)
        with pytest.raises(ValueError, match="group 'new' has committed nothing, so there is no offset to reset"):
            await client.reset_group("new", "earliest")
        wrong: Any = 5
        with pytest.raises(TypeError, match=r"topics is a topic, several, or .*, not 5"):
            await client.reset_group("new", "earliest", wrong)
        nothings: list[Any] = [[], {}, {"t": []}]
        for nothing in nothings:
            with pytest.raises(ValueError, match="no partition is given, so there is no offset to reset"):
                await client.reset_group("new", "earliest", nothing)
        assert groups.groups == {}
        await client.reset_group("new", "earliest", ["t", "u"])
        assert groups.committed("new") == {("t", 0): 10, ("t", 1): 0, ("t", 2): 0, ("u", 0): 0}
        with pytest.raises(UnknownTopicError):
            await client.reset_group("new", "earliest", "nothing")
        with pytest.raises(ValueError, match=r"neither an offset nor a time.* earliest, latest, .* or \+N or -N"):
            await client.reset_group("new", "soon", "t")


async def test_members_keep_a_reset_from_being_made_and_are_named(face: Face) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)
        groups.commit("app", "t", 0, 40)
        groups.groups["app"].members = [member(number) for number in range(1, 8)]
        with pytest.raises(NonEmptyGroupError, match="has live members: stop them first"):
            await client.reset_group("app", "latest")
        with pytest.raises(NonEmptyGroupError, match="has live members: stop them first") as caught:
            await client.reset_group("app", "latest", dry_run=True)
        assert "; members: member-1 (10.0.0.1), " in caught.value.message
        assert caught.value.message.endswith(", member-5 (10.0.0.5), 2 more")
        assert caught.value.members == [f"member-{number}" for number in range(1, 8)]
        assert groups.committed("app") == {("t", 0): 40}


async def test_an_offset_that_is_not_committed_is_an_error(face: Face) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)

        def refuse(request: messages.Request, payload: memoryview) -> Answer | None:
            if isinstance(request, messages.CommitOffsetsRequest):
                error = NonEmptyGroupError("a member has joined", group="app", members=["m"])
                return messages.CommitOffsetsReply(
                    [messages.CommitOffsetResult(each.topic, each.partition, error) for each in request.offsets]
                )
            return groups.answer(request, payload)

        broker.script = refuse
        with pytest.raises(NonEmptyGroupError, match="has joined"):
            await client.reset_group("app", "latest", "t")


async def test_groups_and_offsets_are_deleted(face: Face) -> None:
    async with face(topics=TOPICS) as (broker, client):
        groups = _filled(broker)
        for name in ("a", "b", "c"):
            for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
                groups.commit(name, topic, partition, 1)
        groups.groups["b"].members = [member(1, {"t": [0, 1]})]
        results = await client.delete_groups(["a", "b", "nobody"])
        assert [(each.group, type(each.error)) for each in results] == [
            ("a", type(None)),
            ("b", NonEmptyGroupError),
            ("nobody", UnknownGroupError),
        ]
        assert results[1].error.members == ["member-1"]
        with pytest.raises(UnknownGroupError):
            await client.delete_group("a")
        with pytest.raises(GroupSubscribedError, match="members of group b read topic t: stop them first"):
            await client.delete_group_offsets("b", "t")
        assert await client.delete_group_offsets("b", "u") == [("u", 0)]
        assert await client.delete_group_offsets("c", {"t": []}) == []
        assert await client.delete_group_offsets("c", {"t": [1, 7], "u": None}) == [("t", 1), ("u", 0)]
        assert groups.committed("c") == {("t", 0): 1}
        await client.delete_group("c")
        assert list(groups.groups) == ["b"]


@pytest.mark.parametrize(("text", "records"), [("+5", 5), ("-12", -12), (" +0 ", 0)])
def test_a_number_with_a_sign_is_a_shift(text: str, records: int) -> None:
    assert parse_shift(text) == Shift(records)


@pytest.mark.parametrize("text", [f"+{2**63}", "-" + "9" * 5_000])
def test_a_shift_that_no_log_is_long_enough_for(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.{1,40} is too large a number$"):
        parse_shift(text)


@each_case("text", ["5", "-1h", "+", "latest", "+1.5", "--5", "+٣"])
def test_anything_else_is_none(text: str) -> None:
    assert parse_shift(text) is None
