"""Budgets of memory, filled by the smallest elements there are: objects are counted, not only the text in them."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, CommittedOffsets, Pending
from seglog_broker.coordinators.groups.membership import PROTOCOLS_MAX
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.settings import share_settings
from seglog_broker.coordinators.state_machine import Now, Outbox, ProducerIdAndEpoch
from tests.support import each_case
from tests.unit.broker.coordinators.groups.classic_coordinator import Coordinator
from tests.unit.broker.coordinators.groups.consumer_coordinator import ConsumerCoordinator, Topics
from tests.unit.broker.coordinators.groups.share_coordinator import ShareCoordinator
from tests.unit.broker.coordinators.transactions import coordinator as transactions

NUMBER = 1_400
"""Of elements, about: a dictionary of more than 1,365 is largest for what is in it."""
START = Now(0, 1_700_000_000_000)
NAMES = [f"t{number}" for number in range(NUMBER)]
TOPICS = Topics(**dict.fromkeys(NAMES, 1), large=NUMBER)


def classic(protocols: int, **asked: Any) -> Any:
    made = Coordinator()
    for number in range(NUMBER // protocols):
        each: dict[str, Any] = dict.fromkeys(asked, f"{number}")
        made.join(protocols=[(f"p{each}", b"%d" % (100 + each)) for each in range(protocols)], **each)
    return made.group


def consumers(number: int, text: int = 0, **said: Any) -> Any:
    made = ConsumerCoordinator(TOPICS)
    for each in range(number):
        of_its_own = {"instance_id": f"i{each}" + "i" * text, "rack_id": f"r{each}" + "r" * text} if text else {}
        regex = {"regex": f"{each}"} if "regex" in said else {}
        made.beat(f"m{each}", **{**said, **of_its_own, **regex})
        made.log.clear()  # on the disk
    return made.group


def share_members(number: int, topics: Topics, *names: str) -> Any:
    made = ShareCoordinator(topics, members_max=number)
    for member in range(number):
        made.ready(f"m{member}", *names)
        made.log.clear()
        made.records.clear()
    return made.group


def offset(number: int) -> CommittedOffset:
    return CommittedOffset(1_000_000 + number, 1_000 + number, "", 1_700_000_000_000 + number)


def offsets(groups: int, name: int = 1) -> Any:
    made = CommittedOffsets()
    for number in range(NUMBER):
        made.put(f"g{number % groups}", (f"{number}" * name, 1_000 + number), offset(number))
    return made


def pending(producers: int, groups: int) -> Any:
    made = CommittedOffsets()
    for number in range(NUMBER):
        key = f"{number}", 1_000 + number
        made.hold(1_000 + number % producers, f"g{number % groups}", key, Pending(offset(number)))
    return made


class Transactions:
    def __init__(self, ids: int, topics: int = 0, partitions: int = 0) -> None:
        self._machines = []
        self._expected: dict[int, Any] = {}
        for _ in range(ids):
            made = transactions.Coordinator()
            producer = ProducerIdAndEpoch(*made.init())
            added = [(f"{topic}", 1_000 + number) for topic in range(topics) for number in range(partitions)]
            if added:
                made.machine.add_partitions(producer, added, 1, made.now)
            made.settle()
            self._machines.append(made.machine)
            for _ in added:  # as partitions note it
                self._expected[len(self._expected)] = (producer.epoch, bool(added))

    @property
    def size(self) -> int:
        return sum(machine.size for machine in self._machines)


def share_partitions(count: int, jobs: int) -> Any:
    """Partitions of share groups, with records in flight that each go their own way."""
    made = SharePartitions()
    limits = share_settings({}, BrokerConfig())._replace(record_locks_max=10_000)
    for number in range(count):
        machine = SharePartition(PartitionKey(f"{number}", bytes(16), 0), Outbox(), lambda: limits, lambda _key: None)
        machine.initialize(0, 0, START)
        for job in range(jobs):
            machine.acquire(f"m{job}", [(job, job)], job, 1, 1, is_record_limit=True, now=START)
        machine.outbox.take()
        made.append(machine)
    return made


class SharePartitions(list[SharePartition]):
    @property
    def size(self) -> int:
        return sum(machine.size for machine in self)


KINDS: dict[str, Callable[[], Any]] = {
    "protocols of members": lambda: classic(PROTOCOLS_MAX),
    "static members": lambda: classic(1, instance_id=True),
    "ids of members": lambda: classic(1, needs_known_member_id=True),
    "names of topics": lambda: consumers(1, topics=[f"{number}" for number in range(NUMBER)]),
    "members with long names": lambda: consumers(NUMBER // 10, text=5_000),
    "topics of a member": lambda: consumers(1, topics=NAMES),
    "partitions of a member": lambda: consumers(1, topics=["large"]),
    "expressions": lambda: consumers(NUMBER // 40, topics=[], regex=True),
    "members of a share group": lambda: share_members(NUMBER // 10, TOPICS, "t0"),
    "topics of a share group": lambda: share_members(1, TOPICS, *NAMES),
    "partitions of a share group": lambda: share_members(1, TOPICS, "large"),
    "offsets of a group": lambda: offsets(1),
    "offsets of topics with long names": lambda: offsets(1, 60),
    "groups with an offset": lambda: offsets(NUMBER),
    "offsets of a transaction": lambda: pending(1, 1),
    "offsets of transactions": lambda: pending(NUMBER, 1),
    "offsets of transactions in groups": lambda: pending(NUMBER, NUMBER),
    "partitions of share groups": lambda: share_partitions(NUMBER // 10, 0),
    "records in flight": lambda: share_partitions(1, NUMBER),
    "transactional ids": lambda: Transactions(NUMBER // 10),
    "topics of a transaction": lambda: Transactions(1, NUMBER, 1),
    "partitions of a transaction": lambda: Transactions(1, 1, NUMBER),
}


@each_case("kind", KINDS)
def test_the_smallest_elements_take_no_more_than_what_is_counted(kind: str) -> None:
    KINDS[kind]()  # what is made once, such as writers of messages
    gc.collect()
    tracemalloc.start()
    try:
        made = KINDS[kind]()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken <= made.size <= 6 * taken, "much less would refuse what there is room for"
