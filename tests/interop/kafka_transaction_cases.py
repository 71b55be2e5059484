"""What a Kafka is asked about transactions, by raw requests, and its answers.

``python -m tests.interop.kafka_transaction_cases`` asks a real Kafka and writes ``kafka_transaction_answers.json``.
Each story has a transactional id and a topic of its own; a line of its answer has the request, its version, and what
came back. Producer ids are numbered in the order in which they appear in a story.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.kafka import Request
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.kafka_cases import UNKNOWN_ID, create_topics, rewrite, topic_ids
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.interop.peer import Kafka, kafka_script

ANSWERS: Final = Path(__file__).with_name("kafka_transaction_answers.json")

SETTINGS: Final = ("transaction.max.timeout.ms=600000", "group.initial.rebalance.delay.ms=0")
"""Of whoever is asked."""

EXPIRING_SETTINGS: Final = (
    *SETTINGS,
    "transactional.id.expiration.ms=1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms=100",
)

KAFKA_SETTINGS: Final = (
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=50",
)

MANY: Final = 1_000
"""Transactional ids that come once."""

CONNECTIONS: Final = 20
"""How many clients they come from."""

UNSETTLED: Final = frozenset({"PrepareCommit", "PrepareAbort"})

NOT_THERE_YET: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class Who(NamedTuple):
    """A producer."""

    producer_id: int = -1
    epoch: int = -1

    @property
    def fields(self) -> dict[str, Plain]:
        """As requests name it."""
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}

    @classmethod
    def told(cls, answer: Plain) -> "Who":
        """That of an answer."""
        return cls(answer["producer_id"], answer["producer_epoch"])


NOBODY: Final = Who()


class Story:
    """A conversation about one transactional id, which has the name of the story."""

    def __init__(self, wire: Wire, name: str, many: int = MANY) -> None:
        self.wire = wire
        self.many = many
        self.name = name
        self.lines: list[str] = []
        self.sequences: dict[tuple[Who, int], int] = {}
        self.later = NOT_THERE_YET
        """Codes after which a request is asked again, and not noted."""
        self._ids: dict[int, str] = {-1: "none"}

    def start_again(self) -> None:
        """Forget what was told so far."""
        self.lines.clear()
        self._ids = {-1: "none"}

    def ask(self, api: str, fields: dict[str, Plain], version: int) -> Plain:
        """The answer, once the coordinator is there."""
        for _ in range(500):
            answer = plain(self.wire.ask(request(api, fields), version))
            if not self.later & set(codes(answer)):
                return answer
            time.sleep(0.02)
        raise AssertionError(f"{api}: it is not answered, because there is no coordinator, or a transaction goes on")

    def note(self, what: str, version: int, *found: object) -> None:
        """Keep a line; codes by their names."""
        texts = [each.name if isinstance(each, ErrorCode) else str(each) for each in found]
        self.lines.append(f"{what} v{version}: {' '.join(texts)}")

    def shown(self, who: Who) -> str:
        """A producer in a line."""
        return f"{self._ids.setdefault(who.producer_id, f'p{len(self._ids)}')}/{who.epoch}"

    # --- Requests -----------------------------------------------------------------------------------------------------

    def init(self, who: Who = NOBODY, *, timeout_ms: int = 60_000, version: int = 5, name: str | None = None) -> Who:
        """InitProducerId."""
        fields: dict[str, Plain] = {
            "transactional_id": self.name if name is None else name,
            "transaction_timeout_ms": timeout_ms,
        }
        if version >= 3:
            fields |= who.fields
        answer = self.ask("InitProducerId", fields, version)
        told = Who.told(answer)
        self.note("init", version, ErrorCode(answer["error_code"]), self.shown(told))
        return told

    def add(self, who: Who, *partitions: int, version: int = 3, topics: Sequence[str] = ()) -> None:
        """AddPartitionsToTxn; by default of the story's own topic."""
        fields = {
            "transactional_id": self.name,
            **who.fields,
            "topics": [{"name": name, "partitions": list(partitions or (0,))} for name in topics or (self.name,)],
        }
        answer = self.ask(
            "AddPartitionsToTxn", {f"v3_and_below_{name}": each for name, each in fields.items()}, version
        )
        results = [
            ErrorCode(partition["partition_error_code"])
            for result in answer["results_by_topic_v3_and_below"]
            for partition in result["results_by_partition"]
        ]
        self.note("add", version, *sorted(results))

    def produce(
        self, who: Who, partition: int = 0, *, version: int = 11, transactional: bool = True,
        sequence: int | None = None, name: str | None = "",
    ) -> None:  # fmt: skip
        """Produce, one record."""
        place = who, partition
        begin = self.sequences.get(place, 0) if sequence is None else sequence
        builder = BatchBuilder(
            producer_id=who.producer_id, producer_epoch=who.epoch, base_sequence=begin, transactional=transactional
        )
        builder.append(1_700_000_000_000, b"k", b"v")
        fields = {
            "transactional_id": self.name if name == "" else name,
            "acks": -1,
            "timeout_ms": 10_000,
            "topic_data": [
                {"name": self.name, "partition_data": [{"index": partition, "records": builder.build().hex()}]}
            ],
        }
        answer = self.ask("Produce", fields, version)
        [[result]] = [topic["partition_responses"] for topic in answer["responses"]]
        code = ErrorCode(result["error_code"])
        if code == ErrorCode.NONE:
            self.sequences[place] = begin + 1
        self.note("produce", version, code, result["base_offset"])

    def end(self, who: Who, *, commit: bool = True, version: int = 4, name: str | None = None) -> Who:
        """EndTxn."""
        fields = {"transactional_id": self.name if name is None else name, **who.fields, "committed": commit}
        answer = self.ask("EndTxn", fields, version)
        told = Who.told(answer) if version >= 5 else who
        what = "commit" if commit else "abort"
        self.note(what, version, ErrorCode(answer["error_code"]), *([self.shown(told)] if version >= 5 else []))
        return told

    def add_offsets(self, who: Who, *, version: int = 4, group: str | None = None) -> None:
        """AddOffsetsToTxn."""
        fields = {
            "transactional_id": self.name,
            **who.fields,
            "group_id": f"readers of {self.name}" if group is None else group,
        }
        answer = self.ask("AddOffsetsToTxn", fields, version)
        self.note("add offsets", version, ErrorCode(answer["error_code"]))

    def commit_offsets(
        self, who: Who, offset: int, *, version: int = 4, member: str = "", generation: int = -1,
        instance: str | None = None, partition: int = 0, topic: str | None = None, group: str | None = None,
        metadata: str = "", name: str | None = None,
    ) -> None:  # fmt: skip
        """TxnOffsetCommit."""
        place = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        fields = {
            "transactional_id": self.name if name is None else name,
            "group_id": f"readers of {self.name}" if group is None else group,
            **who.fields,
            "topics": [self._topic(topic or self.name, version) | {"partitions": [place]}],
        }
        if version >= 3:
            fields |= {"member_id": member, "generation_id_or_member_epoch": generation, "group_instance_id": instance}
        answer = self.ask("TxnOffsetCommit", fields, version)
        self.note("commit offsets", version, *map(ErrorCode, codes(answer)))

    def _topic(self, name: str, version: int) -> dict[str, Plain]:
        """The topic of a commit: by its id since version 6."""
        return {"name": name} if version < 6 else {"topic_id": topic_ids(self.wire).get(name, UNKNOWN_ID)}

    def join(self, member: str = "", *, instance: str | None = None) -> tuple[str, int]:
        """JoinGroup, as the only member: its id and generation."""
        fields = {
            "group_id": f"readers of {self.name}",
            "member_id": member,
            "group_instance_id": instance,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": ""}],
        }
        while (answer := self.ask("JoinGroup", fields, 5))["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            fields["member_id"] = answer["member_id"]
        self.note("join", 5, ErrorCode(answer["error_code"]), answer["generation_id"])
        return answer["member_id"], answer["generation_id"]

    def sync(self, member: str, generation: int, *, instance: str | None = None) -> None:
        """SyncGroup of the only member."""
        fields = {
            "group_id": f"readers of {self.name}",
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": instance,
            "assignments": [{"member_id": member, "assignment": "00"}],
        }
        self.note("sync", 3, *map(ErrorCode, codes(self.ask("SyncGroup", fields, 3))))

    def beat(self, member: str, epoch: int, *, instance: str | None = None) -> int:
        """ConsumerGroupHeartbeat; the epoch of the member."""
        fields: dict[str, Plain] = {
            "group_id": f"readers of {self.name}", "member_id": member, "member_epoch": epoch, "instance_id": instance,
        }  # fmt: skip
        if epoch <= 0:
            fields |= {
                "rebalance_timeout_ms": 60_000,
                "subscribed_topic_names": [self.name],
                "topic_partitions": [],
            }
        answer = self.ask("ConsumerGroupHeartbeat", fields, 1)
        self.note("beat", 1, ErrorCode(answer["error_code"]))
        return int(answer["member_epoch"])

    def committed(self, *, stable: bool = True, partition: int = 0, version: int = 8) -> None:
        """OffsetFetch of a partition."""
        wanted: Plain = {"topics": [{"name": self.name, "partition_indexes": [partition]}]}
        [topic] = self._offset_fetch(wanted, version, stable=stable)["topics"]
        [found] = topic["partitions"]
        self.note("committed", version, ErrorCode(found["error_code"]), found["committed_offset"])

    def all_committed(self, *, stable: bool = True, version: int = 8) -> None:
        """OffsetFetch of all that a group has committed."""
        answer = self._offset_fetch({"topics": None}, version, stable=stable)
        found = [
            (topic["name"], each["partition_index"], ErrorCode(each["error_code"]).name, each["committed_offset"])
            for topic in answer["topics"]
            for each in topic["partitions"]
        ]
        self.note("all committed", version, ErrorCode(answer["error_code"]), sorted(found))

    def is_unstable(self, partition: int) -> bool:
        """Whether an open transaction has committed an offset of a partition."""
        wanted: Plain = {"topics": [{"name": self.name, "partition_indexes": [partition]}]}
        return ErrorCode.UNSTABLE_OFFSET_COMMIT in codes(self._offset_fetch(wanted, 8, stable=True))

    def act(self, act: str, who: Who) -> Who:
        """A request of a producer, or two that belong together; who it is from then on."""
        match act.split():
            case ["begin"]:
                return self.init()
            case ["go", "on"]:
                return self.init(who)
            case ["another", "begins"]:
                self.init()
            case ["add"]:
                self.add(who)
                self.produce(who, version=11)
            case ["produce"]:
                self.produce(who, version=12)
            case ["offsets", "4"]:
                self.add_offsets(who)
                self.commit_offsets(who, 4)
            case ["offsets", "5"]:
                self.commit_offsets(who, 5, version=5)
            case ["commit" | "abort" as how, version]:
                return self.end(who, commit=how == "commit", version=int(version))
        return who

    def _offset_fetch(self, wanted: Plain, version: int, *, stable: bool) -> Plain:
        group = {"group_id": f"readers of {self.name}", **wanted}
        if version >= 8:
            return self.ask("OffsetFetch", {"groups": [group], "require_stable": stable}, version)["groups"][0]
        if version >= 7:
            group["require_stable"] = stable
        return self.ask("OffsetFetch", group, version)

    def _described(self) -> Plain:
        """What DescribeTransactions tells."""
        [found] = self.ask("DescribeTransactions", {"transactional_ids": [self.name]}, 0)["transaction_states"]
        return found

    def settle(self) -> None:
        """Wait until no transaction is being ended, and note what is known then."""
        while (found := self._described())["transaction_state"] in UNSETTLED:
            time.sleep(0.05)
        partitions = [number for topic in found["topics"] for number in topic["partitions"]]
        self.note(
            "described", 0, ErrorCode(found["error_code"]), found["transaction_state"],
            self.shown(Who.told(found)), sorted(partitions),
        )  # fmt: skip

    def wait_for(self, state: str) -> None:
        """Wait until the transaction is in a state, and note what is known then."""
        while self._described()["transaction_state"] != state:
            time.sleep(0.05)
        self.settle()

    def wait_until_forgotten(self) -> None:
        """Wait until the transactional id is not known any more."""
        while (code := self._described()["error_code"]) != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            time.sleep(0.05)
        self.note("described", 0, ErrorCode(code))

    def end_at_once(self, who: Who, *commits: bool, version: int) -> None:
        """EndTxn on as many connections at the same time, each again while it is told to; the answers in any order."""
        with ExitStack() as connections:
            ends: list[tuple[Wire, Request]] = []
            for commit in commits:
                fields = {"transactional_id": self.name, **who.fields, "committed": commit}
                ends.append((connections.enter_context(self.wire.another()), request("EndTxn", fields)))
            for wire, end in ends:
                wire.send(end, version)
            results: list[str] = []
            for wire, end in ends:
                answer = plain(wire.receive())
                while answer["error_code"] == ErrorCode.CONCURRENT_TRANSACTIONS:
                    time.sleep(0.02)
                    answer = plain(wire.ask(end, version))
                told = Who.told(answer)
                results.append(f"{ErrorCode(answer['error_code']).name} {self.shown(told) if version >= 5 else ''}")
        self.note("ends at once", version, *sorted(results))

    def ends(self, partition: int = 0) -> None:
        """The end of a partition, and its last stable offset."""
        found = []
        for isolation in 0, 1:
            place = {"partition_index": partition, "timestamp": -1}
            fields = {
                "replica_id": -1,
                "isolation_level": isolation,
                "topics": [{"name": self.name, "partitions": [place]}],
            }
            answer = self.ask("ListOffsets", fields, 5)
            found.append(answer["topics"][0]["partitions"][0]["offset"])
        self.note("ends", 5, *found)


def codes(answer: Plain) -> list[int]:
    """All error codes in an answer."""
    match answer:
        case dict():
            here = [value for name, value in answer.items() if name.endswith("error_code")]
            return here + [code for value in answer.values() for code in codes(value)]
        case list():
            return [code for item in answer for code in codes(item)]
    return []


# --- The stories ------------------------------------------------------------------------------------------------------


def committed(story: Story) -> None:
    """A transaction of version 1, and the next."""
    who = story.init()
    for _ in range(2):
        story.add(who, 0, 1)
        story.produce(who, 0)
        story.produce(who, 1)
        story.ends()
        story.end(who)
        story.settle()
        story.ends()


def aborted(story: Story) -> None:
    """A transaction of version 1 that is aborted, and asked for again."""
    who = story.init()
    story.add(who)
    story.produce(who)
    story.end(who, commit=False)
    story.settle()
    story.end(who, commit=False)
    story.end(who, commit=True)
    story.ends()


def committed_by_version_2(story: Story) -> None:
    """Partitions are added by producing, and the epoch rises."""
    who = story.init()
    for commit in True, False, True:
        story.produce(who, version=12)
        story.produce(who, 1, version=12)
        following = story.end(who, commit=commit, version=5)
        story.settle()
        story.end(who, commit=commit, version=5)
        story.end(who, commit=not commit, version=5)
        story.produce(who, version=12)
        who = following
    story.ends()


def empty_by_version_2(story: Story) -> None:
    """Nothing to commit, something to abort."""
    who = story.init()
    story.end(who, commit=True, version=5)
    following = story.end(who, commit=False, version=5)
    story.settle()
    story.end(who, commit=False, version=5)
    story.end(following, commit=True, version=5)
    story.end(following, commit=False, version=5)
    story.settle()


def empty_by_version_1(story: Story) -> None:
    """Nothing to end."""
    who = story.init()
    story.end(who, commit=True)
    story.end(who, commit=False)


def zombie(story: Story) -> None:
    """A producer that was replaced, by the versions of each api."""
    old = story.init()
    story.add(old)
    story.produce(old)
    story.init()
    story.settle()
    new = story.init()
    for version in 0, 1, 2, 3:
        story.add(old, version=version)
    for version in 0, 1, 2, 3, 4:
        story.add_offsets(old, version=version)
    for version in 0, 1, 2, 4, 5:
        story.end(old, version=version)
        story.end(old, commit=False, version=version)
    for version in 3, 10, 11, 12:
        story.produce(old, version=version)
    for version in 3, 4, 5:
        story.init(old, version=version)
    story.add(new)
    story.produce(new)
    story.produce(old, version=11)
    story.produce(old, version=12)
    story.end(new)
    story.settle()


def unknown(story: Story) -> None:
    """Ids that nobody has."""
    nobody = Who(123_456, 0)
    for version in 0, 2, 3:
        story.add(nobody, version=version)
    story.add_offsets(nobody)
    for version in 0, 2, 4, 5:
        story.end(nobody, version=version)
    for version in 3, 11, 12:
        story.produce(nobody, version=version)
    story.commit_offsets(nobody, 3)
    story.commit_offsets(nobody, 3, version=5)
    story.settle()
    story.init(name="")
    story.end(nobody, name="")
    story.init(Who(5, -1))
    story.init(Who(-1, 5))


def another_producer_id(story: Story) -> None:
    """The transactional id has another producer id."""
    who = story.init()
    other = Who(who.producer_id + 1_000_000, 0)
    story.add(other)
    story.end(other)
    story.end(other, version=5)
    story.init(other)
    story.produce(other, version=12)
    story.add(Who(who.producer_id, 7))
    story.end(Who(who.producer_id, 7))


def timeouts(story: Story) -> None:
    """Timeouts that are none."""
    for timeout_ms in 0, -1, 600_001, 600_000:
        story.init(timeout_ms=timeout_ms)


def repeated_init(story: Story) -> None:
    """A producer that goes on, and did not get the answer."""
    first = story.init()
    second = story.init(first)
    story.init(first)
    third = story.init(second)
    story.init(first)
    story.add(third)
    story.init(second)
    story.settle()
    story.init(third)
    story.settle()


def init_while_open(story: Story) -> None:
    """A new producer while a transaction of version 1 is open: the epoch rises with the abort, and with the answer."""
    who = story.init()
    story.add(who)
    story.produce(who)
    story.init()
    story.settle()
    story.init()
    story.ends()


def init_while_open_by_version_2(story: Story) -> None:
    """The same by version 2: the epoch rises once with the abort."""
    who = story.init()
    story.produce(who, version=12)
    story.init()
    story.settle()
    story.end(who, version=5)
    story.end(who, commit=False, version=5)
    story.init()
    story.ends()


def timed_out(story: Story) -> None:
    """A transaction of version 1 that lasts too long."""
    who = story.init(timeout_ms=300)
    story.add(who)
    story.produce(who)
    story.wait_for("CompleteAbort")
    story.ends()
    story.end(who, version=1)
    story.end(who, version=4)
    story.end(who, commit=False)
    story.add(who)
    story.produce(who)
    story.init(who)


def timed_out_by_version_2(story: Story) -> None:
    """The same by version 2: a commit is too late, an abort gets the next epoch."""
    who = story.init(timeout_ms=300)
    story.produce(who, version=12)
    story.wait_for("CompleteAbort")
    story.end(who, version=5)
    story.produce(who, version=12)
    following = story.end(who, commit=False, version=5)
    story.produce(following, version=12)
    story.end(following, version=5)
    story.settle()
    story.ends()


def not_added(story: Story) -> None:
    """Batches for a partition that is not part of the transaction, or of none."""
    who = story.init()
    for version in 3, 10, 11:
        story.produce(who, version=version)
    story.add(who, 0)
    for version in 10, 11:
        story.produce(who, 1, version=version)
    story.produce(who, 0)
    story.end(who)
    story.settle()
    for version in 10, 11:
        story.produce(who, 0, version=version)
    story.ends()


def not_transactional(story: Story) -> None:
    """Batches of no transaction while one is open, and of a transaction without its id."""
    who = story.init()
    story.add(who)
    story.produce(who)
    story.produce(who, transactional=False)
    story.produce(who, transactional=False, version=12)
    for version in 3, 8, 11, 12:
        story.produce(who, name=None, version=version)
    story.end(who)
    story.settle()
    for _ in range(3):  # like one another, and then one that is not
        story.produce(NOBODY, transactional=False, name=None)
    story.produce(who, name=None)


def missing_partitions(story: Story) -> None:
    """Partitions and topics that are not there: nothing is added."""
    who = story.init()
    story.add(who, 0, 7)
    story.add(who, topics=["nowhere"])
    story.settle()
    story.produce(who, 7, version=12)
    story.settle()


def internal_topics(story: Story) -> None:
    """Kafka's own topics are part of no transaction that is asked for, and nothing else of the request is either."""
    who = story.init()
    for name in "__consumer_offsets", "__transaction_state", "__share_group_state":
        story.add(who, topics=[name])
        story.add(who, topics=[story.name, name])
        story.add(who, topics=["nowhere", name])
    story.settle()


def sequences_by_version_2(story: Story) -> None:
    """Each transaction begins at sequence 0, the first of a producer too."""
    who = story.init()
    story.produce(who, sequence=5, version=12)
    story.produce(who, sequence=0, version=12)
    story.produce(who, sequence=0, version=12)
    story.produce(who, sequence=2, version=12)
    following = story.end(who, version=5)
    story.settle()
    story.produce(following, sequence=1, version=12)
    story.produce(following, sequence=0, version=12)
    story.end(following, commit=False, version=5)
    story.settle()


def offsets(story: Story) -> None:
    """Offsets that count with the commit."""
    who = story.init()
    story.commit_offsets(who, 1)
    story.add_offsets(who, group=f"readers of {story.name}")
    story.commit_offsets(who, 3)
    story.committed()
    story.committed(stable=False)
    story.end(who)
    story.settle()
    story.committed()
    story.commit_offsets(who, 9, version=3)
    story.commit_offsets(who, 9, version=4)


def offsets_by_version_2(story: Story) -> None:
    """The same without AddOffsetsToTxn; aborted, then committed."""
    who = story.init()
    story.commit_offsets(who, 3, version=5)
    who = story.end(who, commit=False, version=5)
    story.settle()
    story.committed()
    story.commit_offsets(who, 4, version=5)
    story.committed()
    who = story.end(who, version=5)
    story.settle()
    story.committed()


def offsets_below_0(story: Story) -> None:
    """Which are as good as any, and are found again."""
    who = story.init()
    for partition, offset in enumerate((-1, -2)):
        story.commit_offsets(who, offset, version=5, partition=partition)
    story.all_committed(stable=False)
    story.end(who, version=5)
    while story.is_unstable(1):
        time.sleep(0.05)
    story.all_committed()
    story.committed()


def offsets_of_two(story: Story) -> None:
    """Transactions of two producers commit offsets of the same group: the later commit counts, whichever ends last."""
    one, two = story.init(), story.init(name=f"{story.name}, the other")
    story.add_offsets(one)
    story.commit_offsets(one, 3)
    story.commit_offsets(two, 4, name=f"{story.name}, the other", version=5)
    story.commit_offsets(two, 7, name=f"{story.name}, the other", version=5, partition=1)
    story.committed()
    for stable in True, False:
        story.all_committed(stable=stable)
        for version in 6, 7, 9:
            story.committed(stable=stable, version=version)
            story.committed(stable=stable, partition=1, version=version)
    story.end(two, name=f"{story.name}, the other", version=5)
    story.settle()
    while story.is_unstable(1):
        time.sleep(0.05)
    story.committed()
    story.committed(stable=False)
    story.committed(partition=1)
    story.end(one)
    story.settle()
    while story.is_unstable(0):
        time.sleep(0.05)
    story.committed()
    story.all_committed()


def offsets_that_are_refused(story: Story) -> None:
    """Partitions and groups that are none, metadata that is too long, and a group that was not added."""
    who = story.init()
    story.add_offsets(who, group="")
    story.add_offsets(who)
    for version in 0, 3, 4, 5, 6:
        story.commit_offsets(who, 1, version=version, partition=7)
        story.commit_offsets(who, 1, version=version, topic="nowhere")
        story.commit_offsets(who, 1, version=version, group="")
        story.commit_offsets(who, 1, version=version, metadata="m" * 5_000)
        story.commit_offsets(who, -1, version=version)
        story.commit_offsets(who, 1, version=version, name="somebody else")
    for version in 0, 3, 4:
        story.commit_offsets(who, 1, version=version, group="another group, which was not added")
    for member, generation in ("", 0), ("nobody", -1), ("nobody", 0):
        story.commit_offsets(who, 1, version=3, member=member, generation=generation)
        story.commit_offsets(who, 1, version=5, member=member, generation=generation)
        story.commit_offsets(who, 1, version=6, member=member, generation=generation)
    story.committed()
    story.end(who)
    story.settle()


def offsets_of_a_zombie(story: Story) -> None:
    """Offsets of a producer that was replaced, and of a member that there is not."""
    old = story.init()
    new = story.init()
    for version in 0, 2, 4, 5, 6:
        story.commit_offsets(old, 3, version=version)
    story.commit_offsets(new, 3, version=5, member="nobody", generation=3)
    story.end(new, commit=False, version=5)
    story.settle()


def open_and_ended(story: Story) -> None:
    """EndTxn while the transaction is being ended, if it is met."""
    who = story.init()
    story.add(who)
    story.end(who, commit=True, version=1)
    story.settle()
    story.end(who, commit=True, version=1)
    story.end(who, commit=False, version=1)
    story.add(who)
    story.settle()
    story.end(who, commit=False, version=5)
    story.settle()


def ended_at_once(story: Story) -> None:
    """The same EndTxn from several connections, as of a client that lost its connection; and one that differs."""
    who = story.init()
    for _ in range(3):
        story.add(who)
        story.produce(who)
        story.end_at_once(who, True, True, True, version=4)
        story.settle()
    story.add(who)
    story.produce(who)
    story.end_at_once(who, True, False, version=4)
    who = story.init()
    for commit in True, False:
        story.produce(who, version=12)
        story.end_at_once(who, commit, commit, commit, version=5)
        story.settle()
        who = Who(who.producer_id, who.epoch + 1)
    story.ends()


LAST: Final = (
    "", "add", "produce", "offsets 5", "abort 5", "add, commit 4", "add, abort 4", "produce, commit 5",
    "produce, abort 5", "produce, another begins",
)  # fmt: skip
"""What a producer has asked for last: see ``Story.act``."""

NEXT: Final = (
    "begin", "go on", "add", "offsets 4", "produce", "offsets 5", "commit 4", "abort 4", "commit 5", "abort 5",
)  # fmt: skip
"""What it asks for at once after that."""


def one_after_the_other(story: Story) -> None:
    """Each request at once after each other one, as the producer that the last answer named, until it need not wait."""
    story.later |= {ErrorCode.CONCURRENT_TRANSACTIONS}
    for last, following in product(LAST, NEXT):
        if last.endswith("4") and following in {"produce", "offsets 5"}:
            continue  # versions that no client mixes: Kafka may take them for part of what is being ended
        begin = len(story.lines)
        who = story.init()
        for act in (*last.split(", "), following):
            who = story.act(act, who)
        story.lines[begin:] = [", ".join(story.lines[begin:])]


def never_ended(story: Story) -> None:
    """A client that begins a transaction, and begins anew instead of ending it, over and over."""
    for _ in range(4):
        who = story.init()
        if who == NOBODY:  # what was open is aborted first
            story.settle()
            who = story.init()
        story.add(who)
        story.produce(who)
    story.ends()
    for _ in range(4):
        who = story.init()
        if who == NOBODY:
            story.settle()
            who = story.init()
        story.produce(who, version=12)
    story.ends()


def never_ended_by_many(story: Story) -> None:
    """A client that takes another transactional id each time, and ends nothing."""
    for number in range(5):
        name = f"{story.name} {number}"
        story.produce(story.init(name=name), version=12, name=name)
    story.ends()


def offsets_of_members(story: Story) -> None:
    """Offsets of a member of the classic protocol, of its former generations, and of others."""
    who = story.init()
    member, generation = story.join()
    story.add_offsets(who)
    for version in 3, 5, 6:
        story.commit_offsets(who, 1, version=version, member=member, generation=generation)  # it has no assignment yet
    story.sync(member, generation)
    for version in 3, 5, 6:
        story.commit_offsets(who, 1, version=version, member=member, generation=generation)
        story.commit_offsets(who, 1, version=version, member=member, generation=generation + 1)
        story.commit_offsets(who, 1, version=version, member="nobody", generation=generation)
        story.commit_offsets(who, 1, version=version, generation=generation)
        story.commit_offsets(who, 1, version=version, member=member)
    for version in 0, 2, 3, 5, 6:
        story.commit_offsets(who, 1, version=version)
    member, newer = story.join(member)
    story.commit_offsets(who, 2, version=3, member=member, generation=generation)
    story.commit_offsets(who, 2, version=3, member=member, generation=newer)
    story.sync(member, newer)
    for version in 3, 5, 6:
        story.commit_offsets(who, 2, version=version, member=member, generation=generation)
        story.commit_offsets(who, 3, version=version, member=member, generation=newer)
    story.end(who)
    story.settle()
    story.committed()


def offsets_of_static_members(story: Story) -> None:
    """Offsets of a static member, and of the one before it in the same place."""
    who = story.init()
    fenced, _ = story.join(instance="place")
    member, generation = story.join(instance="place")
    story.sync(member, generation, instance="place")
    story.add_offsets(who)
    for version in 3, 5, 6:
        story.commit_offsets(who, 1, version=version, member=fenced, generation=generation, instance="place")
        story.commit_offsets(who, 1, version=version, member=member, generation=generation, instance="elsewhere")
        story.commit_offsets(who, 1, version=version, member=fenced, generation=generation)
    story.commit_offsets(who, 2, version=5, member=member, generation=generation, instance="place")
    story.end(who, version=5)
    story.settle()
    story.committed()


def offsets_of_consumers(story: Story) -> None:
    """Offsets of a member of the consumer protocol, of its former epochs, and of one that has left."""
    who = story.init()
    epoch = story.beat("somebody", 0)
    story.add_offsets(who)
    for version in 3, 5, 6:
        for given in epoch, epoch - 1, epoch + 1, -1:
            story.commit_offsets(who, 1, version=version, member="somebody", generation=given)
        story.commit_offsets(who, 1, version=version, member="nobody", generation=epoch)
        story.commit_offsets(who, 1, version=version)
    story.beat("another", 0)
    rejoined = story.beat("somebody", 0)
    story.commit_offsets(who, 2, version=5, member="somebody", generation=epoch)
    story.commit_offsets(who, 3, version=5, member="somebody", generation=rejoined)
    story.beat("somebody", -1)
    story.commit_offsets(who, 4, version=5, member="somebody", generation=rejoined)
    story.end(who, version=5)
    story.settle()
    story.committed()


def expired(story: Story) -> None:
    """A transactional id that was idle for so long that it is forgotten; see EXPIRING_SETTINGS."""
    while True:
        who = story.init()
        story.add(who)
        if story.lines[-1] == "add v3: NONE":
            break
        story.start_again()  # on a busy machine it may be forgotten before it has begun
    story.produce(who)
    story.end(who)
    story.wait_until_forgotten()
    for version in 0, 3:
        story.add(who, version=version)
    for version in 0, 4:
        story.add_offsets(who, version=version)
    for version in 0, 2, 4, 5:
        story.end(who, version=version)
    for version in 3, 11, 12:
        story.produce(who, version=version)
    story.commit_offsets(who, 3)
    story.commit_offsets(who, 3, version=5)
    story.init(who)
    story.ends()


def once_each(story: Story) -> None:
    """Many transactional ids that come once, from many clients."""
    found: Counter[str] = Counter()
    ids: set[int] = set()
    with ExitStack() as connections:
        wires = [connections.enter_context(story.wire.another()) for _ in range(CONNECTIONS)]
        for begin in range(0, story.many, CONNECTIONS):
            asked: list[tuple[Wire, Request]] = []
            for number, wire in enumerate(wires, start=begin):
                fields = {"transactional_id": f"{story.name} {number}", "transaction_timeout_ms": 60_000}
                asked.append((wire, request("InitProducerId", fields)))
            for wire, init in asked:
                wire.send(init, 2)
            for wire, init in asked:
                answer = plain(wire.receive())
                while answer["error_code"] in NOT_THERE_YET:
                    time.sleep(0.02)
                    answer = plain(wire.ask(init, 2))
                found[f"{ErrorCode(answer['error_code']).name} {answer['producer_epoch']}"] += 1
                ids.add(answer["producer_id"])
    story.note("init of many", 2, *found, "all different" if len(ids) == found.total() else "not all different")


STORIES: Final[tuple[Callable[[Story], None], ...]] = (
    committed, aborted, committed_by_version_2, empty_by_version_2, empty_by_version_1, zombie, unknown,
    another_producer_id, timeouts, repeated_init, init_while_open, init_while_open_by_version_2, timed_out,
    timed_out_by_version_2, not_added, not_transactional, missing_partitions, internal_topics, sequences_by_version_2,
    offsets, offsets_by_version_2, offsets_below_0, offsets_of_two, offsets_that_are_refused, offsets_of_a_zombie,
    open_and_ended, ended_at_once, one_after_the_other, never_ended, never_ended_by_many, offsets_of_members,
    offsets_of_static_members, offsets_of_consumers, once_each,
)  # fmt: skip

EXPIRING: Final = (expired,)
"""Those that are told to a broker that forgets transactional ids soon."""


def answers(port: int, stories: Sequence[Callable[[Story], None]] = STORIES, many: int = MANY) -> dict[str, list[str]]:
    """The lines of each story, from whoever listens on a port of this machine."""
    found: dict[str, list[str]] = {}
    with Wire(port) as wire:
        names = [story.__name__.replace("_", "-") for story in stories]
        create_topics(wire, [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in names])
        for name, tell in zip(names, stories, strict=True):
            story = Story(wire, name, many)
            for kind in 0, 1:  # whose topics are made when a client looks for the coordinator
                story.ask("FindCoordinator", {"key_type": kind, "coordinator_keys": [name]}, 4)
            tell(story)
            found[name] = story.lines
    return found


def captured(folder: Path) -> dict[str, Any]:
    """The answers of a real Kafka whose data are below ``folder``."""
    found: dict[str, list[str]] = {}
    for name, settings, stories in ("kafka", SETTINGS, STORIES), ("expiring", EXPIRING_SETTINGS, EXPIRING):
        with Kafka(kafka_script(), folder / name).running(*settings, *KAFKA_SETTINGS) as kafka:
            found |= answers(kafka.port, stories, 10_000)
    return found


if __name__ == "__main__":
    rewrite(ANSWERS, captured)
