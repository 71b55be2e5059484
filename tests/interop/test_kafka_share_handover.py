"""Directories with share groups that change hands between a real Kafka and seglog, as they are and by ``export-kafka``.

What was accepted stays accepted, what was released or only taken is given again, with its deliveries counted on.
"""

import time
import uuid
from pathlib import Path
from typing import Any, Final, Self

import pytest

from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.handover import ask, batch_of, find_coordinator, listed, produce
from tests.interop.kafka_cases import create_topics, topic_ids
from tests.interop.kafka_wire import Plain, Wire
from tests.interop.peer import JUDGE, KAFKA_VERSION, Kafka, kafka_script
from tests.interop.test_kafka_export import export, voter
from tests.processes import kafka_daemon, wait_until

pytestmark = [pytest.mark.timeout(900)]

GROUP: Final = "workers"
TOPIC: Final = "jobs"
JOBS: Final = 60
ACCEPT, RELEASE, REJECT = 1, 2, 3
STATE: Final = "__share_group_state"

_PARTITIONS: Final = "share.coordinator.state.topic.num.partitions"
KAFKA: Final = (f"{_PARTITIONS}=3", "offsets.topic.num.partitions=1")
OURS: Final = (
    "share.coordinator.state.topic.prune.interval.ms=300",
    "share.coordinator.cold.partition.snapshot.interval.ms=300",
    "share.coordinator.snapshot.update.records.per.snapshot=3",
)

Given = dict[int, int]
"""How often a job was delivered, this time included, by its offset."""


class Worker:
    """A member of GROUP that has joined, until its context ends: then what it has is given to others."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._member = str(uuid.uuid4())
        self._epoch = 0  # of the share session
        self._topic = topic_ids(wire)[TOPIC]
        self.given: Given = {}

    def __enter__(self) -> Self:
        answer = self._beat(0, subscribed_topic_names=[TOPIC])
        while not (answer["assignment"] or {}).get("topic_partitions"):
            time.sleep(0.1)
            answer = self._beat(answer["member_epoch"])
        return self

    def __exit__(self, *_: object) -> None:
        self._epoch = -1  # the last request of the session
        self._acknowledge([])
        self._beat(-1)

    def _beat(self, epoch: int, **more: Plain) -> Any:
        asked = {"group_id": GROUP, "member_id": self._member, "member_epoch": epoch, **more}
        return ask(self._wire, "ShareGroupHeartbeat", asked, 1, "error_code")

    def take(self, count: int) -> list[int]:
        """The offsets of ``count`` jobs that are given to this worker, or of all that there are."""
        taken: list[int] = []
        empty = 0
        while len(taken) < count and empty < 4:
            place: dict[str, Plain] = {"partition_index": 0, "partition_max_bytes": 1 << 20}
            topics = [{"topic_id": self._topic, "partitions": [place]}] if self._epoch == 0 else []
            asked = {
                **self._asked(topics), "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20,
                "max_records": count - len(taken), "batch_size": 1, "share_acquire_mode": 1,
            }  # fmt: skip
            answer = ask(self._wire, "ShareFetch", asked, 2, "error_code")
            found = [
                place
                for topic in answer["responses"]
                for place in topic["partitions"]
                if place["error_code"] == ErrorCode.NONE
            ]
            given = {
                offset: each["delivery_count"]
                for place in found
                for each in place["acquired_records"]
                for offset in range(each["first_offset"], each["last_offset"] + 1)
            }
            self.given |= given
            taken += given
            empty = 0 if given else empty + 1
        return taken

    def say(self, kind: int, *offsets: int) -> None:
        """Acknowledge jobs."""
        self._acknowledge(
            [{"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]} for offset in offsets]
        )

    def _acknowledge(self, batches: list[Plain]) -> None:
        place = {"partition_index": 0, "acknowledgement_batches": batches}
        topics = [{"topic_id": self._topic, "partitions": [place]}] if batches else []
        answer = ask(self._wire, "ShareAcknowledge", self._asked(topics), 1, "error_code")
        codes = {place["error_code"] for topic in answer["responses"] for place in topic["partitions"]}
        assert codes <= {ErrorCode.NONE}, answer

    def _asked(self, topics: list[Plain]) -> dict[str, Plain]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return {"group_id": GROUP, "member_id": self._member, "share_session_epoch": epoch, "topics": topics}


def prepare(wire: Wire) -> None:
    """The jobs, and a group that begins with the first of them."""
    create_topics(wire, [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}])
    configs = [{"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}]
    find_coordinator(wire, GROUP, 0)
    resources = [{"resource_type": 32, "resource_name": GROUP, "configs": configs}]
    ask(wire, "IncrementalAlterConfigs", {"resources": resources}, 1, "responses", 0, "error_code")
    produce(wire, TOPIC, batch_of("job", JOBS))


def work(wire: Wire) -> None:
    """Of 30 jobs 20 are accepted, 4 released, 1 rejected, 5 only taken."""
    with Worker(wire) as worker:
        taken = worker.take(30)
        assert taken == list(range(30))
        for offset in taken[:20]:  # one after the other: each is a record
            worker.say(ACCEPT, offset)
        worker.say(RELEASE, *taken[20:24])
        worker.say(REJECT, taken[24])


def check(wire: Wire, expected: Given) -> None:
    """Everything that is left is given once, and nothing else."""
    with Worker(wire) as worker:
        worker.take(JOBS)
        assert worker.given == expected


def described(wire: Wire) -> tuple[int, int]:
    """Where the group is, and how many jobs it has not done with."""
    asked = {"groups": [{"group_id": GROUP, "topics": None}]}
    [group] = ask(wire, "DescribeShareGroupOffsets", asked, 1, "groups", 0, "error_code")["groups"]
    [place] = group["topics"][0]["partitions"]
    return place["start_offset"], place["lag"]


def is_pruned(wire: Wire, partitions: int) -> bool:
    """True if records of the state were deleted."""
    return any(listed(wire, STATE, number, -2)[0] > 0 for number in range(partitions))


LEFT: Final[Given] = {**dict.fromkeys((*range(20, 24), *range(25, 30)), 2), **dict.fromkeys(range(30, JOBS), 1)}
"""After ``work``."""


def test_seglog_goes_on_where_a_kafka_stopped_and_that_kafka_where_seglog_did(tmp_path: Path) -> None:
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    with kafka.running(*KAFKA), Wire(kafka.port) as wire:
        prepare(wire)
        work(wire)
        assert described(wire) == (20, 39)
    with kafka_daemon(kafka.directory, *OURS) as daemon:
        with Wire(daemon.kafka_port) as wire:
            assert described(wire) == (20, 39)
            with Worker(wire) as worker:
                assert worker.take(9) == [*range(20, 24), *range(25, 30)]
                assert set(worker.given.values()) == {2}
                worker.say(ACCEPT, 20, 21)
            wait_until(lambda: is_pruned(wire, 3), "the state was pruned")
            assert described(wire) == (22, 37)
        assert daemon.stop() == 0
    left = {offset: count + (count > 1) for offset, count in LEFT.items() if offset > 21}
    with kafka.running(*KAFKA), Wire(kafka.port) as wire:
        assert described(wire) == (22, 37)
        check(wire, left)


@pytest.mark.parametrize("level", [30, 33] if KAFKA_VERSION == JUDGE else [30])
def test_kafka_serves_an_export_with_share_groups_and_seglog_takes_it_back(level: int, tmp_path: Path) -> None:
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    with kafka_daemon(tmp_path / "data", *OURS) as daemon:
        with Wire(daemon.kafka_port) as wire:
            prepare(wire)
            work(wire)
            wait_until(lambda: is_pruned(wire, 1), "the state was pruned")
            assert described(wire) == (20, 39)
        assert daemon.stop() == 0
    export(tmp_path / "data", kafka.directory, "--metadata-version", str(level))
    with kafka.running(voter(kafka), KAFKA[1], f"{_PARTITIONS}=1"), Wire(kafka.port) as wire:
        assert described(wire) == (20, 39)
        check(wire, LEFT)
    with kafka_daemon(kafka.directory, *OURS) as daemon:
        with Wire(daemon.kafka_port) as wire:
            check(wire, {offset: count + 1 for offset, count in LEFT.items()})
        assert daemon.stop() == 0
