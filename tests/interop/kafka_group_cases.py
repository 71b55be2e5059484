"""What a Kafka is asked about groups of the consumer protocol (KIP-848), and its answers.

``python -m tests.interop.kafka_group_cases`` asks a real Kafka and writes ``kafka_group_answers.json``. Each group is
a story of its own: its members' names and epochs follow from the requests before.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from seglog_broker.coordinators.groups.consumer_protocol import encode_assignment, encode_subscription
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.kafka_cases import UNKNOWN_ID, Case, Fields, ask, create_topics, rewrite, settled, topic_ids
from tests.interop.kafka_wire import Plain, Wire
from tests.interop.peer import Kafka, kafka_script

ANSWERS: Final = Path(__file__).with_name("kafka_group_answers.json")

SETTINGS: Final = ("group.initial.rebalance.delay.ms=0",)
"""Of whoever is asked: classic groups do not wait."""

KAFKA_SETTINGS: Final = (
    "group.consumer.assignment.interval.ms=0",  # else it lets up to a second pass between two assignments of a group
    "offsets.topic.num.partitions=1",
)

PREPARED: Final[tuple[Fields, ...]] = tuple(
    {"name": name, "num_partitions": partitions, "replication_factor": 1}
    for name, partitions in (("plain", 4), ("other", 2))
)
"""Topics that are there before the first case."""

_MADE: Final = re.compile(r"[\w-]{22}|(seglog-)?[0-9a-f-]{36}")
"""Member ids that a broker makes."""

PLAIN_ID, OTHER_ID = "{id of plain}", "{id of other}"
_EPOCHS: Final = frozenset(
    {"member_epoch", "group_epoch", "assignment_epoch", "generation_id", "generation_id_or_member_epoch"}
)
"""Fields whose values are counted from the group's first epoch, which is 1: it is here, and in a real Kafka 2."""

JOINING, LEAVING, AWAY = 0, -1, -2


def _title(group: str, title: str) -> str:
    return f"{group or 'no name'}: {title}"


def _beat(title: str, group: str, member: str, epoch: int, *, version: int = 1, **more: Plain) -> Case:
    fields = {"group_id": group, "member_id": member, "member_epoch": epoch}
    return Case(_title(group, title), "ConsumerGroupHeartbeat", version, {**fields, **more})


def _join(title: str, group: str, member: str, *, version: int = 1, **more: Plain) -> Case:
    said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["plain"], "topic_partitions": []}
    return _beat(title, group, member, JOINING, version=version, **{**said, **more})


def _matching(title: str, group: str, member: str, regex: str, **more: Plain) -> Case:
    """A member joins that subscribes by an expression alone."""
    return _join(title, group, member, subscribed_topic_names=None, subscribed_topic_regex=regex, **more)


def _full_beat(title: str, group: str, owned: list[Fields]) -> Case:
    """A heartbeat that leaves nothing out."""
    return _beat(
        title, group, "m1", 1,
        rebalance_timeout_ms=60_000, subscribed_topic_names=["plain"], topic_partitions=owned,
    )  # fmt: skip


def _owned(*numbers: int, topic: str = PLAIN_ID) -> list[Fields]:
    return [{"topic_id": topic, "partitions": [*numbers]}] if numbers else []


def _described(title: str, *groups: str, version: int = 1, **more: Plain) -> Case:
    return Case(_title(groups[0], title), "ConsumerGroupDescribe", version, {"group_ids": [*groups], **more})


def _commit(
    title: str, group: str, member: str, epoch: int, *partitions: int, version: int = 9, topic: str = "plain"
) -> Case:
    items = [
        {"partition_index": partition, "committed_offset": 0, "committed_metadata": "m"}
        for partition in partitions or [0]
    ]
    named = {"topic_id": topic} if version >= 10 else {"name": topic}
    fields = {"group_id": group, "member_id": member, "generation_id_or_member_epoch": epoch}
    return Case(_title(group, title), "OffsetCommit", version, {**fields, "topics": [{**named, "partitions": items}]})


def _fetch(title: str, group: str, member: str | None, epoch: int, *, version: int = 9, topic: str = "plain") -> Case:
    named = {"topic_id": topic} if version >= 10 else {"name": topic}
    asked = {"group_id": group, "member_id": member, "member_epoch": epoch}
    topics = [{**named, "partition_indexes": [0, 1]}]
    return Case(_title(group, title), "OffsetFetch", version, {"groups": [{**asked, "topics": topics}]})


def _delete(title: str, group: str) -> Case:
    return Case(_title(group, title), "DeleteGroups", 3, {"groups_names": [group]})


def _forget(title: str, group: str, topic: str) -> Case:
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    return Case(_title(group, title), "OffsetDelete", 0, {"group_id": group, "topics": topics})


def _classic_join(title: str, group: str, member: str = "", *, version: int = 9, **more: Plain) -> Case:
    protocols = [{"name": "range", "metadata": encode_subscription(["plain"]).hex()}]
    fields = {
        "group_id": group,
        "member_id": member,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": protocols,
    }
    return Case(_title(group, title), "JoinGroup", version, {**fields, **more})


def _sync(title: str, group: str, member: str, generation: int, *assigned: int, **more: Plain) -> Case:
    assignments = [{"member_id": member, "assignment": encode_assignment([("plain", assigned)]).hex()}]
    fields = {"group_id": group, "member_id": member, "generation_id": generation, "protocol_type": "consumer"}
    named = {"protocol_name": "range", "assignments": assignments if assigned else []}
    return Case(_title(group, title), "SyncGroup", 5, {**fields, **named, **more})


def _classic_beat(title: str, group: str, member: str, generation: int) -> Case:
    fields = {"group_id": group, "member_id": member, "generation_id": generation}
    return Case(_title(group, title), "Heartbeat", 4, fields)


def _classic_leave(title: str, group: str, *members: str) -> Case:
    fields = {"group_id": group, "members": [{"member_id": member} for member in members]}
    return Case(_title(group, title), "LeaveGroup", 5, fields)


def _classic_described(title: str, group: str, version: int = 6) -> Case:
    return Case(_title(group, title), "DescribeGroups", version, {"groups": [group]})


def _coordinator(title: str, group: str, version: int) -> Case:
    asked = {"coordinator_keys": [group]} if version >= 4 else {"key": group}
    return Case(_title(group, title), "FindCoordinator", version, {"key_type": 0, **asked})


def _listed(title: str, version: int = 5, **filters: Plain) -> Case:
    return Case(f"listed: {title}", "ListGroups", version, filters)


CASES: Final[tuple[Case, ...]] = (
    # --- Requests that no member makes ---
    _join("without a group", "", "m1"),
    _join("without a member id", "refused", ""),
    _beat("a heartbeat without a member id", "refused", "", 1),
    _beat("a heartbeat without a member id, version 0", "refused", "", 1, version=0),
    _beat("an epoch that is none", "refused", "m1", -3),
    _join("no rebalance timeout", "refused", "m1", rebalance_timeout_ms=-1),
    _join("a rebalance timeout of 0", "impatient", "m1", rebalance_timeout_ms=0),
    _join("does not say that it has nothing", "refused", "m1", topic_partitions=None),
    _join("has partitions", "refused", "m1", topic_partitions=_owned(0)),
    _join("subscribes to nothing", "refused", "m1", subscribed_topic_names=None),
    _join("an empty instance id", "refused", "m1", instance_id=""),
    _join("a blank instance id", "refused", "m1", instance_id=" "),
    _join("an empty rack", "refused", "m1", rack_id=""),
    _join("an unknown assignor", "refused", "m1", server_assignor="nope"),
    _join("an assignor without a name", "refused", "m1", server_assignor=""),
    _matching("a bad expression", "refused", "m1", "("),
    _matching("an expression of another syntax", "refused", "m1", "(?=x)"),
    _beat("away without an instance id", "refused", "m1", AWAY),
    _described("nothing of it is left", "refused"),
    # --- Groups that are not there ---
    _beat("a heartbeat", "unknown", "m1", 1),
    _beat("leaves", "unknown", "m1", LEAVING),
    _beat("a static member is away", "unknown", "m1", AWAY, instance_id="one"),
    _beat("a static member's heartbeat", "unknown", "m1", 1, instance_id="one"),
    _commit("a commit of a member", "unknown", "m1", 1),
    _commit("a commit of a member, version 8", "unknown", "m1", 1, version=8),
    _fetch("offsets for a member", "unknown", "m1", 1),
    _fetch("offsets for nobody", "unknown", None, -1),
    *(_described(f"described, version {version}", "unknown", version=version) for version in range(2)),
    _described("without a name", ""),
    _described("twice, and another", "unknown", "unknown", "nope"),
    _delete("deleted", "unknown"),
    # --- Subscribing to little ---
    _join("to no topic", "little", "m1", subscribed_topic_names=[]),
    _matching("by an empty expression", "little", "m2", ""),
    _join("to a topic that is not there", "little", "m3", subscribed_topic_names=["nope"]),
    _join("to an impossible name", "little", "m4", subscribed_topic_names=["a b", ""]),
    _join("to one twice", "twice", "m1", subscribed_topic_names=["plain", "plain"]),
    _join("to internal offsets", "internal", "m1", subscribed_topic_names=["__consumer_offsets"]),
    # --- A member by itself ---
    _join("joins", "alone", "m1"),
    _described("described", "alone"),
    _described("with operations, version 0", "alone", version=0, include_authorized_operations=True),
    _beat("lives", "alone", "m1", 1),
    _beat("says what it has", "alone", "m1", 1, topic_partitions=_owned(0, 1, 2, 3)),
    _beat("says that it has less", "alone", "m1", 1, topic_partitions=_owned(0)),
    _beat("says that it has nothing", "alone", "m1", 1, topic_partitions=[]),
    _beat("says that it has more", "alone", "m1", 1, topic_partitions=_owned(0, topic=OTHER_ID)),
    _beat("has what is no topic", "alone", "m1", 1, topic_partitions=_owned(0, topic=UNKNOWN_ID)),
    _full_beat("says everything", "alone", _owned(0, 1, 2, 3)),
    _beat("an epoch to come", "alone", "m1", 2),
    _beat("joins again without a subscription", "alone", "m1", JOINING),
    _join("joins again", "alone", "m1"),
    _beat("of nobody", "alone", "m9", 1),
    _beat("of nobody, as a static member", "alone", "m9", 1, instance_id="one"),
    _beat("becomes static", "alone", "m1", 1, instance_id="one"),
    _beat("another assignor", "alone", "m1", 1, server_assignor="range"),
    _described("with the other assignor", "alone"),
    _beat("an unknown assignor", "alone", "m1", 2, server_assignor="nope"),
    _beat("a bad expression", "alone", "m1", 2, subscribed_topic_regex="("),
    _beat("an empty rack", "alone", "m1", 2, rack_id=""),
    _beat("a rack", "alone", "m1", 2, rack_id="r"),
    _beat("the other topic", "alone", "m1", 2, subscribed_topic_names=["other"]),
    _beat("it has given up", "alone", "m1", 2, topic_partitions=[]),
    _beat("has the other topic", "alone", "m1", 3, topic_partitions=_owned(0, 1, topic=OTHER_ID)),
    _beat("the epoch before", "alone", "m1", 2, topic_partitions=_owned(0, topic=OTHER_ID)),
    _beat("the epoch before, with more", "alone", "m1", 2, topic_partitions=_owned(0)),
    _beat("the epoch before, without a word", "alone", "m1", 2),
    _described("described again", "alone"),
    _beat("leaves by another name", "alone", "m9", LEAVING),
    _beat("leaves with topics", "alone", "m1", LEAVING, subscribed_topic_names=["plain"]),
    _beat("leaves again", "alone", "m1", LEAVING),
    _beat("lives no more", "alone", "m1", 3),
    _described("empty", "alone"),
    _join("comes back", "alone", "m1"),
    _beat("leaves for good", "alone", "m1", LEAVING),
    _delete("deleted", "alone"),
    _described("gone", "alone"),
    _join("begins anew", "alone", "m1"),
    # --- Two members ---
    _join("the first joins", "pair", "m1", server_assignor="range"),
    _join("the second joins", "pair", "m2", server_assignor="range"),
    _described("reconciling", "pair"),
    _beat("the second waits", "pair", "m2", 2, topic_partitions=[]),
    _beat("the first hears of it", "pair", "m1", 1, topic_partitions=_owned(0, 1, 2, 3)),
    _beat("the first still has all", "pair", "m1", 1, topic_partitions=_owned(0, 1, 2, 3)),
    _described("revoking", "pair"),
    _beat("the first lives", "pair", "m1", 1),
    _commit("of the first, as it revokes", "pair", "m1", 1, 3),
    _beat("the first gives up one", "pair", "m1", 1, topic_partitions=_owned(0, 1, 2)),
    _beat("the first gives up two", "pair", "m1", 1, topic_partitions=_owned(0, 1)),
    _beat("the second gets them", "pair", "m2", 2, topic_partitions=[]),
    _beat("the second has them", "pair", "m2", 2, topic_partitions=_owned(2, 3)),
    _beat("the first lives on", "pair", "m1", 2),
    _described("stable", "pair"),
    _commit("of the first", "pair", "m1", 2),
    _commit("of the first, of what it has no more", "pair", "m1", 2, 3),
    _commit("of the first, with the epoch before", "pair", "m1", 1),
    _commit("of the first, with the epoch before, of what it has no more", "pair", "m1", 1, 3),
    _commit("of the first, with the epoch before, version 8", "pair", "m1", 1, version=8),
    _commit("of the first, with an epoch to come", "pair", "m1", 3),
    _commit("of the first, with an epoch to come, version 8", "pair", "m1", 3, version=8),
    _commit("of the first, without an epoch", "pair", "m1", -1),
    _commit("of the first, version 8", "pair", "m1", 2, version=8),
    _commit("of nobody", "pair", "m9", 2),
    _commit("of an admin", "pair", "", -1),
    _commit("by topic id", "pair", "m1", 2, version=10, topic=PLAIN_ID),
    _commit("by a topic id that is none", "pair", "m1", 2, version=10, topic=UNKNOWN_ID),
    _commit("with the epoch before, by topic id", "pair", "m1", 1, version=10, topic=PLAIN_ID),
    _commit("of a topic that is not there", "pair", "m1", 2, topic="nope"),
    _commit("of a partition that is not there", "pair", "m1", 2, 9),
    _fetch("offsets for the first", "pair", "m1", 2),
    _fetch("offsets for the first, with the epoch before", "pair", "m1", 1),
    _fetch("offsets for the first, with an epoch to come", "pair", "m1", 3),
    _fetch("offsets for nobody", "pair", "m9", 2),
    _fetch("offsets for an admin", "pair", None, -1),
    _fetch("offsets for an empty name", "pair", "", -1),
    _fetch("offsets by topic id", "pair", "m1", 2, version=10, topic=PLAIN_ID),
    _fetch("offsets with the epoch before, version 8", "pair", None, -1, version=8),
    _delete("deleted with members", "pair"),
    _forget("offsets deleted that members read", "pair", "plain"),
    _forget("offsets deleted that nobody reads", "pair", "other"),
    _classic_described("described as a classic one", "pair"),
    _classic_described("described as a classic one, version 5", "pair", version=5),
    _beat("the second leaves", "pair", "m2", LEAVING),
    _beat("the first is told", "pair", "m1", 2, topic_partitions=_owned(0, 1)),
    _beat("the first has all", "pair", "m1", 3, topic_partitions=_owned(0, 1, 2, 3)),
    _commit("of the second, which has left", "pair", "m2", 2),
    _beat("the first leaves", "pair", "m1", LEAVING),
    _commit("of an admin, to an empty group", "pair", "", -1),
    _commit("of who has left, to an empty group", "pair", "m1", 3),
    _commit("of who has left, without an epoch", "pair", "m1", -1),
    _fetch("offsets for who has left", "pair", "m1", 3),
    _forget("offsets deleted that nobody reads any more", "pair", "plain"),
    _delete("deleted", "pair"),
    _fetch("offsets that are gone", "pair", None, -1),
    # --- Commits that come with an older epoch ---
    _join("the first joins", "older", "m1", server_assignor="range"),
    _join("the second joins", "older", "m2", server_assignor="range"),
    _commit("of the first, which does not know of the second", "older", "m1", 1, 0, 3),
    _beat("the first hears of it", "older", "m1", 1, topic_partitions=_owned(0, 1, 2, 3)),
    _beat("the first gives up", "older", "m1", 1, topic_partitions=_owned(0, 1)),
    _beat("the second gets them", "older", "m2", 2, topic_partitions=[]),
    _commit("of what it has had since", "older", "m1", 1, 0, 1),
    _commit("of what it has had since, and what it has no more", "older", "m1", 1, 0, 3),
    _commit("of what it has had since, and what is not there", "older", "m1", 1, 0, 9),
    _commit("of what is not there", "older", "m1", 1, 9),
    _commit("of another topic", "older", "m1", 1, topic="other"),
    _commit("of a topic that is not there", "older", "m1", 1, topic="nope"),
    _commit("of what it has had since later", "older", "m2", 1, 2),
    _commit("of epoch 0", "older", "m1", 0, 0),
    _join("a third joins", "older", "m3", server_assignor="range"),
    _beat("the first gives up again", "older", "m1", 2, topic_partitions=_owned(0, 1)),
    _beat("the second gives up", "older", "m2", 2, topic_partitions=_owned(2, 3)),
    _described("revoking", "older"),
    *(
        _commit(f"of the {name}, with epoch {epoch}, partition {number}", "older", member, epoch, number)
        for name, member, epoch, number in (
            ("first", "m1", 1, 0),
            ("first", "m1", 1, 1),
            ("second", "m2", 1, 2),
            ("second", "m2", 2, 2),
            ("second", "m2", 2, 3),
            ("third", "m3", 1, 3),
            ("third", "m3", 2, 3),
            ("third", "m3", 3, 3),
        )
    ),
    _beat("the second has given up", "older", "m2", 2, topic_partitions=_owned(2)),
    _beat("the first has what it keeps", "older", "m1", 2, topic_partitions=_owned(0, 1)),
    _beat("the third gets it", "older", "m3", 3, topic_partitions=[]),
    *(
        _commit(f"of the {name}, with epoch {epoch}, at last, partition {number}", "older", member, epoch, number)
        for name, member, epoch, number in (
            ("first", "m1", 1, 0),
            ("second", "m2", 1, 2),
            ("second", "m2", 2, 2),
            ("second", "m2", 2, 3),
            ("third", "m3", 2, 3),
            ("third", "m3", 3, 3),
        )
    ),
    _fetch("offsets with an older epoch", "older", "m1", 1),
    _join("the first joins again", "older", "m1", server_assignor="range"),
    _commit("after it joined again", "older", "m1", 1, 0),
    # --- Requests of the classic protocol ---
    _join("joins", "mixed", "m1"),
    _classic_beat("a heartbeat", "mixed", "m1", 1),
    _sync("a sync", "mixed", "m1", 1),
    _classic_join("a join that is no consumer's", "mixed", protocol_type="connect"),
    _classic_join("a join of nonsense", "mixed", protocols=[{"name": "range", "metadata": b"\0\0nonsense".hex()}]),
    _classic_join("a join without an assignor", "mixed", protocols=[]),
    _classic_join("a join with a short session", "mixed", session_timeout_ms=1),
    _classic_join("a join of nobody", "mixed", "m9"),
    _classic_leave("nobody leaves", "mixed", "m9"),
    _classic_leave("an admin ends it, and nobody", "mixed", "m1", "m9"),
    _described("nobody is left", "mixed"),
    # --- Members that the broker names, version 0 ---
    _join("joins", "named", "", version=0),
    _beat("lives", "named", "{made}", 1, version=0),
    _join("another joins", "named", "m2", version=0),
    _beat("leaves", "named", "{made}", LEAVING, version=0),
    # --- Static members ---
    _join("the first joins", "static", "m1", instance_id="one", server_assignor="range"),
    _join("the second joins", "static", "m2", instance_id="two", server_assignor="range"),
    _beat("the first hears of it", "static", "m1", 1, instance_id="one", topic_partitions=_owned(0, 1, 2, 3)),
    _beat("the first gives up", "static", "m1", 1, instance_id="one", topic_partitions=_owned(0, 1)),
    _beat("the second gets them", "static", "m2", 2, instance_id="two", topic_partitions=[]),
    _described("stable", "static"),
    _join("a third with its instance id", "static", "m3", instance_id="one"),
    _beat("the first by the id of another", "static", "m1", 2, instance_id="two"),
    _beat("the first by an unknown instance id", "static", "m1", 2, instance_id="nope"),
    _beat("the first without its instance id", "static", "m1", 2),
    _beat("another is away", "static", "m3", AWAY, instance_id="one"),
    _beat("one without a place is away", "static", "m3", AWAY, instance_id="nope"),
    _beat("the first is away", "static", "m1", AWAY, instance_id="one"),
    _described("one is away", "static"),
    _beat("the first is away twice", "static", "m1", AWAY, instance_id="one"),
    _beat("the first lives though away", "static", "m1", 2, instance_id="one"),
    _commit("of the first though away", "static", "m1", 2),
    _commit("of the first, as away", "static", "m1", AWAY),
    _beat("the second lives meanwhile", "static", "m2", 2, instance_id="two"),
    _join("a third takes its place", "static", "m3", instance_id="one", server_assignor="range"),
    _described("one has another id", "static"),
    _beat("the third lives", "static", "m3", 2, instance_id="one", topic_partitions=_owned(0, 1)),
    _beat("the first is fenced", "static", "m1", 2, instance_id="one"),
    _beat("the first is unknown by its id alone", "static", "m1", 2),
    _commit("of the first, which was replaced", "static", "m1", 2),
    _beat("the first leaves", "static", "m1", LEAVING, instance_id="one"),
    _beat("the second is away", "static", "m2", AWAY, instance_id="two"),
    _join("the second comes back as itself", "static", "m2", instance_id="two", server_assignor="range"),
    _beat("the second is away again", "static", "m2", AWAY, instance_id="two"),
    _join(
        "the second comes back for another topic",
        "static",
        "m4",
        instance_id="two",
        subscribed_topic_names=["other"],
        server_assignor="range",
    ),
    _beat("the third hears of it", "static", "m3", 2, instance_id="one", topic_partitions=_owned(0, 1)),
    _beat("the third leaves for good", "static", "m3", LEAVING, instance_id="one"),
    _beat("the second leaves without its instance id", "static", "m4", LEAVING),
    _described("empty", "static"),
    # --- Groups that are not of this protocol ---
    _commit("a commit", "offsets", "", -1),
    _described("described", "offsets"),
    _beat("a heartbeat", "offsets", "m1", 1),
    _join("a member joins", "offsets", "m1"),
    _fetch("its offsets are there", "offsets", "m1", 1),
    _classic_join("joins", "classic"),
    _classic_join("joins with its id", "classic", "{made}"),
    _sync("assigned", "classic", "{made}", 1, 0, 1, 2, 3),
    _described("described", "classic"),
    _beat("a heartbeat", "classic", "m1", 1),
    _beat("a heartbeat by its member's name", "classic", "{made}", 1),
    _beat("its member leaves the other way", "classic", "{made}", LEAVING),
    _classic_beat("its member lives", "classic", "{made}", 1),
    _join("a member of the other protocol joins", "classic", "m1", server_assignor="range"),
    _described("it has changed", "classic"),
    _classic_described("it is no classic one", "classic"),
    _classic_beat("its member is told to join", "classic", "{made}", 1),
    _classic_join("its member joins", "classic", "{made}"),
    _sync("its member learns what to keep", "classic", "{made}", 1),
    _beat("the new one waits", "classic", "m1", 2, topic_partitions=[]),
    _described("described as it changes", "classic"),
    _beat("the new one leaves", "classic", "m1", LEAVING),
    _classic_described("it is classic again", "classic"),
    _classic_leave("its member leaves", "classic", "{made}"),
    _join("a member of the other protocol finds it empty", "classic", "m1"),
    _classic_join("joins", "connect", protocol_type="connect"),
    _classic_join("joins with its id", "connect", "{made}", protocol_type="connect"),
    _join("a consumer joins", "connect", "m1"),
    # --- A group without a name ---
    *(_coordinator(f"its coordinator, version {version}", "", version) for version in (3, 6)),
    *(_fetch(f"offsets before any commit, version {version}", "", None, -1, version=version) for version in (8, 9)),
    _fetch("offsets for a member before any commit", "", "m1", 1),
    _classic_described("described before any commit", ""),
    _delete("deleted before any commit", ""),
    _forget("offsets deleted before any commit", "", "plain"),
    _commit("a commit of a member", "", "m1", 1),
    _commit("a commit", "", "", -1),
    _commit("a commit, version 8", "", "", -1, 1, version=8),
    _fetch("offsets", "", None, -1),
    _classic_described("described", ""),
    _described("described as one of the consumer protocol", ""),
    _listed("with one that has no name"),
    _forget("offsets deleted", "", "plain"),
    _classic_join("joins", ""),
    _sync("assigned", "", "m1", 1, 0),
    _classic_beat("a heartbeat", "", "m1", 1),
    _classic_leave("leaves", "", "m1"),
    _delete("deleted", ""),
    _fetch("offsets that are gone", "", None, -1),
    _listed("without it"),
    # --- Groups whose last offset is deleted ---
    _commit("a commit", "forgotten", "", -1),
    _forget("the last one deleted", "forgotten", "plain"),
    _classic_described("empty", "forgotten"),
    _classic_described("empty, version 5", "forgotten", version=5),
    _fetch("nothing", "forgotten", None, -1),
    _forget("deleted again", "forgotten", "plain"),
    _listed("with one whose last offset was deleted"),
    _delete("deleted", "forgotten"),
    _classic_described("gone", "forgotten"),
    # --- All of them ---
    _listed("all"),
    _listed("of the protocol", types_filter=["consumer"]),
    _listed("of the protocol, in capitals", types_filter=["CONSUMER"]),
    _listed("of no type", types_filter=["nope"]),
    _listed("stable ones of the protocol", types_filter=["consumer"], states_filter=["Stable"]),
    _listed("version 4, empty ones", version=4, states_filter=["empty"]),
    # --- Subscriptions by expression ---
    _matching("joins", "regex", "m1", "pla.*"),
    _beat("lives", "regex", "m1", 1),
    _described("described", "regex"),
    _beat(
        "reads by name as well",
        "regex",
        "m1",
        1,
        subscribed_topic_names=["other"],
        topic_partitions=_owned(0, 1, 2, 3),
    ),
    _beat(
        "reads by no expression any more",
        "regex",
        "m1",
        2,
        subscribed_topic_regex="",
        topic_partitions=_owned(0, 1, 2, 3),
    ),
    _described("without an expression", "regex"),
    _matching("by a part of a name", "part", "m1", "lai"),
    _described("nothing is matched", "part"),
    _join("by a name and an expression", "both", "m1", subscribed_topic_regex="oth.*"),
    _full_beat("says everything", "both", _owned(0, 1, 2, 3)),
    _described("a name and an expression", "both"),
    _matching("of all", "all", "m1", ".*"),
    _beat("lives", "all", "m1", 1),
    _described("internal ones, too", "all"),
    _join("a negative rebalance timeout", "timeout", "m1", rebalance_timeout_ms=-5),
    # --- No time to join: a member that does not sync at once is gone ---
    *(
        case
        for number, timeout in enumerate((-1, 0, -5))
        for case in (
            _classic_join("asks for an id", f"hasty {number}", rebalance_timeout_ms=timeout),
            _classic_join(f"joins, {timeout} ms", f"hasty {number}", "{made}", rebalance_timeout_ms=timeout),
            _classic_described("described", f"hasty {number}"),
            _sync("assigned", f"hasty {number}", "{made}", 1, 0),
            _classic_beat("its member is unknown", f"hasty {number}", "{made}", 1),
        )
    ),
)


def answers(port: int, settle: Callable[[], None] = lambda: None) -> Iterator[tuple[Case, Plain]]:
    """Prepare a new broker, and ask it all cases in their order; each with its answer."""
    with Wire(port) as wire:
        create_topics(wire, PREPARED)
        settle()
        await_coordinator(wire)
        made: list[str] = []
        firsts: dict[str, int] = {}
        for case in CASES:
            ids = {f"{{id of {name}}}": id_ for name, id_ in topic_ids(wire).items()}
            group = case.title.partition(":")[0]
            asked = case._replace(fields=_shifted(case.fields, firsts.get(group, 1) - 1))
            answer = ask(wire, asked, ids | ({"{made}": made[-1]} if made else {}))
            if case.fields.get("subscribed_topic_regex") is not None:
                settle()  # a real Kafka matches expressions beside its requests
            found = answer and answer.get("member_id")
            if found is not None and _MADE.fullmatch(found) and found not in made:
                made.append(found)
            if case.api == "JoinGroup":
                firsts.setdefault(group, 1)
                if answer["error_code"] == 0 and case.fields["rebalance_timeout_ms"] <= 0:
                    _await_empty(wire, group)
            elif case.fields.get("member_epoch") == JOINING and answer.get("member_epoch"):
                firsts.setdefault(group, answer["member_epoch"])
            yield case, _settled(answer, {id_: name for name, id_ in ids.items()}, made, firsts.get(group, 1) - 1)


def await_coordinator(wire: Wire) -> None:
    """Return when groups are served: a real Kafka makes their topic first."""
    coordinator = Case("", "FindCoordinator", 6, {"key_type": 0, "coordinator_keys": ["g"]})
    heartbeat = Case("", "Heartbeat", 4, {"group_id": "g", "member_id": "m", "generation_id": 1})
    for _ in range(600):
        [found] = ask(wire, coordinator, {})["coordinators"]
        if found["error_code"] == 0 and ask(wire, heartbeat, {})["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID:
            return
        time.sleep(0.1)
    raise AssertionError("there is no coordinator of groups")


def _await_empty(wire: Wire, group: str) -> None:
    """Return when a group has no members."""
    for _ in range(100):
        [found] = ask(wire, _classic_described("", group), {})["groups"]
        if found["group_state"] == "Empty":
            return
        time.sleep(0.1)
    raise AssertionError(f"{group} has members, which had no time to join")


def _shifted(value: Plain, shift: int, field: str = "") -> Plain:
    """Fields with epochs that are so much greater."""
    match value:
        case dict():
            return {name: _shifted(item, shift, name) for name, item in value.items()}
        case list():
            return [_shifted(item, shift) for item in value]
        case int() if field in _EPOCHS and value > 0:
            return value + shift
    return value


def _settled(answer: Plain, names: Mapping[str, str], made: list[str], shift: int) -> Plain:
    """The answer without what differs from run to run: ids of topics and of members that the broker named, epochs."""

    def scalar(field: str, value: Plain) -> Plain:
        if field in _EPOCHS and value > 0:
            return value - shift
        if field in {"host", "port"} and value not in {"", 0, -1}:
            return f"{{{field}}}"
        if not isinstance(value, str):
            return value
        for member_id in made:
            value = value.replace(member_id, "{made}")
        return names.get(value, value)

    return settled(answer, scalar)


def captured(folder: Path) -> dict[str, Any]:
    """The answers of a real Kafka whose data are below ``folder``, by case."""
    with Kafka(kafka_script(), folder / "kafka").running(*SETTINGS, *KAFKA_SETTINGS) as kafka:
        found = {case.title: answer for case, answer in answers(kafka.port, lambda: time.sleep(1))}
    assert len(found) == len(CASES), "a title stands for two cases"
    return found


if __name__ == "__main__":
    rewrite(ANSWERS, captured)
