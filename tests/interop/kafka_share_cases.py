"""What a Kafka is asked about the members of share groups (KIP-932) and their settings, and its answers.

``python -m tests.interop.kafka_share_cases`` asks a real Kafka and writes ``kafka_share_answers.json``. Each group is a
story of its own.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from seglog_broker.config.group_keys import GROUP_KEYS
from seglog_broker.coordinators.groups.consumer_protocol import encode_subscription
from tests.interop.kafka_cases import Case, Fields, ask, create_topics, replaced, rewrite, settled, topic_ids
from tests.interop.kafka_group_cases import await_coordinator
from tests.interop.kafka_wire import Plain, Wire
from tests.interop.peer import Kafka, kafka_script

ANSWERS: Final = Path(__file__).with_name("kafka_share_answers.json")

SETTINGS: Final = ("group.share.assignment.interval.ms=0", "group.share.max.size=3")
"""Of whoever is asked."""

KAFKA_SETTINGS: Final = ("offsets.topic.num.partitions=1",)

PREPARED: Final[tuple[Fields, ...]] = tuple(
    {"name": name, "num_partitions": partitions, "replication_factor": 1}
    for name, partitions in (("one", 1), ("two", 2), ("growing", 1), ("dying", 1))
)

OF_SHARE_GROUPS: Final = [name for name in GROUP_KEYS if not name.startswith("consumer.")]

JOINING, LEAVING = 0, -1


def _beat(group: str, title: str, member: str, epoch: int, *topics: str, **more: Plain) -> Case:
    fields = {"group_id": group, "member_id": member, "member_epoch": epoch, **more}
    named = {"subscribed_topic_names": [*topics]} if topics else {}
    return Case(f"{group.strip() or 'no name'}: {title}", "ShareGroupHeartbeat", 1, {**fields, **named})


def _described(title: str, *groups: str, **more: Plain) -> Case:
    return Case(f"{groups[0] or 'no name'}: {title}", "ShareGroupDescribe", 1, {"group_ids": [*groups], **more})


def _listed(title: str, **filters: Plain) -> Case:
    return Case(f"listed: {title}", "ListGroups", 5, filters)


def _delete(group: str, title: str) -> Case:
    return Case(f"{group}: {title}", "DeleteGroups", 3, {"groups_names": [group]})


def _set(name: str, value: str, group: str = "settings") -> Case:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resource = {"resource_type": 32, "resource_name": group, "configs": configs}
    return Case(f"{group}: {name}={value}", "IncrementalAlterConfigs", 1, {"resources": [resource]})


def _others(group: str) -> Iterator[Case]:
    """What members of other protocols, and those who commit, ask a share group."""
    protocols = [{"name": "range", "metadata": encode_subscription(["one"]).hex()}]
    member = {"group_id": group, "member_id": "m1", "generation_id": 3}
    joins = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 60_000, "protocol_type": "consumer"}
    offsets = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": "m"}]
    committer = {"group_id": group, "member_id": "", "generation_id_or_member_epoch": -1}
    for api, version, fields in (
        ("JoinGroup", 9, {"group_id": group, "member_id": "", **joins, "protocols": protocols}),
        ("SyncGroup", 5, {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}),
        ("Heartbeat", 4, member),
        ("LeaveGroup", 5, {"group_id": group, "members": [{"member_id": "m1"}]}),
        ("DescribeGroups", 6, {"groups": [group]}),
        ("ConsumerGroupDescribe", 1, {"group_ids": [group]}),
        ("OffsetCommit", 9, {**committer, "topics": [{"name": "one", "partitions": offsets}]}),
        ("OffsetFetch", 9, {"groups": [{"group_id": group, "topics": [{"name": "one", "partition_indexes": [0]}]}]}),
        ("OffsetDelete", 0, {"group_id": group, "topics": [{"name": "one", "partitions": [{"partition_index": 0}]}]}),
    ):
        yield Case(f"{group}: {api}", api, version, fields)
    consumer = {"group_id": group, "member_id": "c", "rebalance_timeout_ms": 60_000}
    for epoch in (0, 3):
        said = {"member_epoch": epoch, "subscribed_topic_names": ["one"], "topic_partitions": []}
        yield Case(f"{group}: a consumer, epoch {epoch}", "ConsumerGroupHeartbeat", 1, {**consumer, **said})


def _topics(title: str, api: str, version: int, **fields: Plain) -> Case:
    return Case(f"topics: {title}", api, version, {"timeout_ms": 30_000, **fields})


def _starts(title: str, group: str, topics: dict[str, list[int]] | None, version: int = 1) -> Case:
    """Where a share group is, in partitions of topics; None: in all."""
    named = None if topics is None else [{"topic_name": name, "partitions": topics[name]} for name in topics]
    asked = {"groups": [{"group_id": group, "topics": named}]}
    return Case(f"{group}: {title}", "DescribeShareGroupOffsets", version, asked)


def _restart(title: str, group: str, **topics: dict[int, int]) -> Case:
    """A share group is to read from other offsets on: by partition, of each topic."""
    named = [
        {
            "topic_name": name,
            "partitions": [{"partition_index": number, "start_offset": at} for number, at in starts.items()],
        }
        for name, starts in topics.items()
    ]
    return Case(f"{group or 'no name'}: {title}", "AlterShareGroupOffsets", 0, {"group_id": group, "topics": named})


def _unread(title: str, group: str, *topics: str) -> Case:
    asked = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}
    return Case(f"{group or 'no name'}: {title}", "DeleteShareGroupOffsets", 0, asked)


CASES: Final[tuple[Case, ...]] = (
    # --- Requests that no member makes ---
    _beat("refused", "without a member id", "", JOINING, "one"),
    _beat("refused", "a long member id", "x" * 37, JOINING, "one"),
    _beat("refused", "a blank member id", " ", JOINING, "one"),
    _beat("", "without a group", "m1", JOINING, "one"),
    _beat(" ", "a blank group", "m1", JOINING, "one"),
    _beat("refused", "reads nothing", "m1", JOINING),
    _beat("refused", "an empty rack", "m1", JOINING, "one", rack_id=""),
    _beat("refused", "an epoch that is none", "m1", -2),
    _beat("refused", "a heartbeat without a group", "m1", 1),
    _beat("refused", "leaves a group that is not there", "m1", LEAVING),
    _described("is not there", "refused"),
    _delete("refused", "cannot be deleted"),
    # --- A member, and more ---
    _beat("alone", "joins", "m1", JOINING, "one"),
    _described("before its partitions have a state", "alone"),
    _beat("alone", "gets its partitions", "m1", 2),
    _beat("alone", "with the epoch before", "m1", 2),
    _beat("alone", "lives", "m1", 3),
    _beat("alone", "says what it reads", "m1", 3, "one"),
    _beat("alone", "with an epoch to come", "m1", 4),
    _beat("alone", "with an old epoch", "m1", 1),
    _beat("alone", "another member is unknown", "m2", 3),
    _beat("alone", "another member cannot leave", "m2", LEAVING),
    _described("described", "alone", include_authorized_operations=True),
    _beat("alone", "reads more", "m1", 3, "one", "two", "nope"),
    _beat("alone", "gets more", "m1", 4),
    _beat("alone", "another one joins", "m2", JOINING, "one", rack_id="r"),
    _beat("alone", "is of the next epoch", "m1", 5),
    _beat("alone", "joins again", "m1", JOINING, "two"),
    _described("two members", "alone"),
    _beat("alone", "a third one", "m3", JOINING, "one"),
    _beat("alone", "one too many", "m4", JOINING, "one"),
    _beat("alone", "one too many lives", "m4", 3),
    _delete("alone", "has members"),
    *_others("alone"),
    _listed("share groups", types_filter=["share"]),
    _listed("in upper case", types_filter=["SHARE"], states_filter=["STABLE"]),
    _listed("empty ones", types_filter=["share"], states_filter=["Empty"]),
    _beat("alone", "leaves", "m1", LEAVING),
    _beat("alone", "the second one leaves", "m2", LEAVING),
    _beat("alone", "the last one leaves", "m3", LEAVING),
    _described("empty", "alone"),
    _listed("an empty group", types_filter=["share"]),
    _beat("alone", "comes back to its partitions", "m1", JOINING, "one"),
    _beat("alone", "leaves again", "m1", LEAVING),
    _delete("alone", "is deleted"),
    _described("deleted", "alone"),
    _beat("alone", "begins anew", "m1", JOINING, "one"),
    # --- Topics ---
    _beat("grows", "joins", "m1", JOINING, "growing", "late"),
    _beat("grows", "has it", "m1", 2),
    _topics("grow", "CreatePartitions", 3, topics=[{"name": "growing", "count": 3, "assignments": None}]),
    _beat("grows", "learns of it", "m1", 3),
    _beat("grows", "has all", "m1", 4),
    _topics("late", "CreateTopics", 4, topics=[{"name": "late", "num_partitions": 1, "replication_factor": 1}]),
    _beat("grows", "learns of a new one", "m1", 5),
    _beat("grows", "has the new one", "m1", 6),
    _beat("dies", "joins", "m1", JOINING, "dying"),
    _beat("dies", "has it", "m1", 2),
    _topics("deleted", "DeleteTopics", 6, topics=[{"name": "dying"}]),
    _beat("dies", "has lost it", "m1", 3),
    _topics("again", "CreateTopics", 4, topics=[{"name": "dying", "num_partitions": 2, "replication_factor": 1}]),
    _beat("dies", "learns that it is back", "m1", 4),
    _beat("dies", "has it again", "m1", 5),
    _beat("dies", "lives", "m1", 6),
    # --- Groups of other kinds ---
    Case(
        "consumers: joins", "ConsumerGroupHeartbeat", 1,
        {"group_id": "consumers", "member_id": "c", "rebalance_timeout_ms": 60_000, "subscribed_topic_names": [],
         "topic_partitions": []},
    ),
    _beat("consumers", "joins a group of consumers", "m1", JOINING, "one"),
    _beat("consumers", "a heartbeat to consumers", "m1", 3),
    _beat("consumers", "leaves consumers", "m1", LEAVING),
    _described("no share group", "consumers"),
    # --- Offsets ---
    _starts("nothing is known", "nobody", None),
    _starts("nothing is known of these", "nobody", {"two": [0, 7], "nope": [0]}),
    _starts("of no topics", "nobody", {}),
    _restart("other offsets", "", two={0: 0}),
    _restart("of nothing", "jobs"),
    _restart("of an unknown topic", "jobs", nope={0: 0}),
    _starts("not made by that", "jobs", None),
    _restart("of a new group", "jobs", two={0: 5, 1: -1, 9: 0}, nope={0: 0}, one={0: 0}),
    _starts("where it begins", "jobs", None),
    _starts("where it begins, version 0", "jobs", None, version=0),
    _starts("where it begins, of these", "jobs", {"growing": [0], "nope": [0], "two": [1, 0]}),
    _starts("a topic twice", "jobs", {"two": [0, 0]}),
    _restart("before what there is", "jobs", two={0: -7}),
    _restart("once more", "jobs", two={0: 0}, one={0: 0}),
    _starts("where it begins now", "jobs", None),
    _restart("other offsets", "consumers", two={0: 0}),
    _unread("no offsets", "consumers", "two"),
    _starts("where it is", "consumers", None),
    _unread("no offsets", "", "two"),
    _unread("there is nothing", "nobody", "two"),
    _unread("of some topics", "jobs", "two", "nope"),
    _unread("again", "jobs", "two", "one", "one"),
    _unread("of no topics", "jobs"),
    _starts("nothing is left", "jobs", None),
    _delete("jobs", "is deleted"),
    _unread("after it", "jobs", "one"),
    _beat("busy", "joins", "m1", JOINING, "one"),
    _restart("other offsets beside a member", "busy", one={0: 0}),
    _unread("no offsets beside a member", "busy", "one"),
    # --- Settings ---
    *(
        _set(name, value)
        for name, value in (
            ("share.session.timeout.ms", "44999"),
            ("share.session.timeout.ms", "60001"),
            ("share.heartbeat.interval.ms", "4999"),
            ("share.record.lock.duration.ms", "14999"),
            ("share.record.lock.duration.ms", "20000"),
            ("share.delivery.count.limit", "1"),
            ("share.delivery.count.limit", "11"),
            ("share.partition.max.record.locks", "99"),
            ("share.assignment.interval.ms", "15001"),
            ("share.auto.offset.reset", "none"),
            ("share.auto.offset.reset", "Latest"),
            ("share.auto.offset.reset", "by_duration:PT1H"),
            ("share.auto.offset.reset", "by_duration:-PT1H"),
            ("share.auto.offset.reset", "by_duration:P1Y"),
            ("share.isolation.level", "READ_COMMITTED"),
            ("share.isolation.level", "read_committed"),
            ("share.renew.acknowledge.enable", "yes"),
            ("share.renew.acknowledge.enable", "FALSE"),
            ("errors.deadletterqueue.topic.name", "__dlq"),
            ("errors.deadletterqueue.topic.name", "any"),
            ("share.nope", "1"),
        )
    ),
    *(
        Case(
            f"{group}: described", "DescribeConfigs", 4,
            {"resources": [{"resource_type": 32, "resource_name": group, "configuration_keys": OF_SHARE_GROUPS}],
             "include_synonyms": True},
        )
        for group in ("settings", "without")
    ),
)  # fmt: skip


def answers(port: int, settle: Callable[[], None]) -> Iterator[tuple[Case, Plain]]:
    """Prepare a new broker, and ask it all cases in their order; each with its answer.

    ``settle`` waits for what a request has set off: the state of share partitions, and what topics there are.
    """
    with Wire(port) as wire:
        create_topics(wire, PREPARED)
        settle()
        await_coordinator(wire)
        await_states(wire)
        names: dict[str, str] = {}
        for case in CASES:
            answer = ask(wire, case, {})
            if case.api.startswith(("ShareGroupHeartbeat", "Create", "Delete")):
                settle()
            names |= {id_: f"{{id of {name}}}" for name, id_ in topic_ids(wire).items()}
            yield case, settled(replaced(answer, names), lambda _, value: value)


def await_states(wire: Wire) -> None:
    """Return when the state of share partitions is made: a real Kafka makes its topic first."""
    epoch = ask(wire, _beat("first", "", "m1", JOINING, "one"), {})["member_epoch"]
    for _ in range(600):
        if ask(wire, _beat("first", "", "m1", epoch), {})["assignment"] is not None:
            ask(wire, _beat("first", "", "m1", LEAVING), {})
            ask(wire, _delete("first", ""), {})
            return
        time.sleep(0.1)
    raise AssertionError("no share partition gets a state")


def captured(folder: Path) -> dict[str, Any]:
    """The answers of a real Kafka whose data are below ``folder``, by case."""
    with Kafka(kafka_script(), folder / "kafka").running(*SETTINGS, *KAFKA_SETTINGS) as kafka:
        found = {case.title: answer for case, answer in answers(kafka.port, lambda: time.sleep(1))}
    assert len(found) == len(CASES), "a title stands for two cases"
    return found


if __name__ == "__main__":
    rewrite(ANSWERS, captured)
