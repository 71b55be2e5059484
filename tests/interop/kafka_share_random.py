"""Random stories of share groups, asked of a real Kafka and of seglog in lockstep.

A story has a group of its own with three members. What they may sensibly ask next follows from Kafka's answers; some of
it is odd. A story ends at the first answer behind which the two brokers are in different states.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any, Final, Self

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import CONTROL_BIT
from tests.interop.kafka_cases import UNKNOWN_ID, Case, Fields, create_topics, replaced, settled, topic_ids
from tests.interop.kafka_group_cases import await_coordinator
from tests.interop.kafka_group_differences import differences
from tests.interop.kafka_random_differences import Difference
from tests.interop.kafka_share_random_differences import reason_of
from tests.interop.kafka_wire import Plain, Wire, plain, request

_COMPACTED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "100000"}
TOPICS: Final[tuple[tuple[str, int, dict[str, str]], ...]] = (
    ("jobs", 2, {}),
    ("other", 1, {}),
    ("holes", 1, _COMPACTED),
)
"""Names, partitions, settings."""

PLACES: Final = (("jobs", 0), ("jobs", 1), ("other", 0), ("holes", 0))
ODD_PLACES: Final = (("unknown", 0), ("jobs", 9))
MEMBERS: Final = 3
STEPS: Final = 40
"""Of a story."""

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
ODD: Final = 0.08
"""How often something is odd."""

_WAIT_MS: Final = 300
_SETTLE_SECONDS: Final = 0.2
"""What a real Kafka gets until the records of a session that has ended are available again."""

_CLEANED_MAX: Final = 10
"""Batches of the compacted topic."""

_BASE_TIME: Final = time.time_ns() // 1_000_000 - 7_200_000
"""Of records, in ms: two hours ago. Markers of transactions are of now, and both are in one segment."""

_SETTINGS: Final = {
    "share.isolation.level": ("read_committed", "read_uncommitted"),
    "share.auto.offset.reset": (*["earliest"] * 5, "latest", "by_duration:P9999D", "by_duration:PT1H"),
    "share.delivery.count.limit": ("2", "3", "5"),
    "share.partition.max.record.locks": ("100", "200"),
    "share.record.lock.duration.ms": ("30000", "60000"),
    "share.renew.acknowledge.enable": ("true", "false"),
}

Place = tuple[str, int]
Batch = tuple[int, int, list[int]]
"""Of acknowledgements: first and last offset, types."""


class EndOfStoryError(Exception):
    """Behind an answer the two brokers are in different states."""


class Side:
    """One broker: what names in braces stand for there, and its settled answers. A context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = ExitStack()
        self._wires: dict[str, Wire] = {}
        self._known: dict[str, Plain] = {}

    def __enter__(self) -> Self:
        control = self._wire("control")
        create_topics(
            control,
            [
                {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": _configs(config)}
                for name, partitions, config in TOPICS
            ],
        )
        await_coordinator(control)
        self.ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": ["t"]})  # makes its topic
        self._known = {f"{{id of {name}}}": id_ for name, id_ in topic_ids(control).items()}
        self._known["{id of unknown}"] = UNKNOWN_ID
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _wire(self, connection: str) -> Wire:
        if connection not in self._wires:
            self._wires[connection] = self._open.enter_context(Wire(self._port))
        return self._wires[connection]

    def send(self, connection: str, case: Case) -> None:
        """Ask, and do not wait."""
        self._wire(connection).send(request(case.api, replaced(case.fields, self._known)), case.version)

    def receive(self, connection: str) -> Any:
        """The answer with names for ids, without what each broker says in its own words."""
        names = {id_: name for name, id_ in self._known.items()}

        def scalar(field: str, value: Plain) -> Plain:
            if field == "records" and value:
                return _comparable(value)
            if field.endswith("error_message"):
                return None
            return names.get(value, value) if isinstance(value, str) else value

        return _telling(settled(plain(self._wire(connection).receive()), scalar))

    def ask(self, api: str, version: int, fields: Fields) -> Any:
        """What is not compared."""
        self.send("control", Case("", api, version, fields))
        return self.receive("control")


def _configs(values: dict[str, str]) -> list[Plain]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _comparable(records: str) -> list[str]:
    """First and last offset of whole batches, and a digest without the producer's id, which is each broker's own."""
    data, found = bytearray.fromhex(records), []
    while len(data) >= (size := 12 + int.from_bytes(data[8:12])) > 12:
        first, last = int.from_bytes(data[:8]), int.from_bytes(data[23:27])
        is_marker = data[22] & CONTROL_BIT  # of a transaction, with the time of its end
        data[17:21], data[43:51] = bytes(4), bytes(8)  # the checksum, the id
        digest = "marker" if is_marker else hashlib.sha256(data[:size]).hexdigest()[:8]
        found.append(f"{first} to {first + last}: {digest}")
        del data[:size]
    return found


def _telling(answer: Any) -> Any:
    """Without partitions of ShareFetch that have nothing new: Kafka names them when they come into a session."""
    if "acquisition_lock_timeout_ms" in answer:
        names = ("acquired_records", "error_code", "acknowledge_error_code")
        for topic in answer["responses"]:
            topic["partitions"] = [
                each for each in topic["partitions"] if "records" not in each or any(each[name] for name in names)
            ]
        answer["responses"] = [topic for topic in answer["responses"] if topic["partitions"]]
    return answer


class Member:
    """What a member has, by Kafka's answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        """Of its share session; 0: there is none."""
        self.places: set[Place] = set()
        """Of the session."""
        self.held: dict[Place, set[int]] = {place: set() for place in (*PLACES, *ODD_PLACES)}


class Stories:
    """Random stories for two brokers; ``asked`` counts the requests, ``found`` has what differs without a reason."""

    def __init__(self, kafka: Side, ours: Side, seed: int) -> None:
        self._sides = kafka, ours
        self._dice = Random(seed)
        self._group = ""
        self._members: list[Member] = []
        self._before: list[Case] = []
        self.asked = self.told = 0
        self.found: list[Difference] = []
        self.explained: Counter[str] = Counter()

    def prepare(self) -> None:
        """Holes in a compacted topic, the same on both sides."""
        for number in range(40):
            rows = [(_BASE_TIME, b"k%d" % (number % 7 + key), b"v" * number, ()) for key in range(3)]
            self._produce("holes", 0, encode_batch(rows))
        self._produce("holes", 0, encode_batch([(_BASE_TIME + 200_000, b"last", b"v", ())]))  # closes the segment
        fetch = {"topic": "holes", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}
        fields = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": [fetch]}
        for _ in range(200):
            answers = [side.ask("Fetch", 11, fields) for side in self._sides]
            kafka, ours = (answer["responses"][0]["partitions"][0]["records"] for answer in answers)
            if kafka == [batch for batch in ours if batch in kafka] and len(kafka) < _CLEANED_MAX:
                return
            time.sleep(0.1)
        raise AssertionError("the compacted topic is not the same")

    def tell(self) -> None:
        """One story."""
        self.told += 1
        self._group, self._before = f"g{self.told}", []
        self._members = [Member(f"member-{number}") for number in range(MEMBERS)]
        try:
            self._begin()
            for step in self._dice.choices([*_STEPS], [*_STEPS.values()], k=STEPS):
                step(self, self._dice.choice(self._members))
            self._end()
        except EndOfStoryError:
            pass
        for member in self._members:
            for side in self._sides:
                side.ask("ShareAcknowledge", 2, self._named(member, share_session_epoch=-1))
                side.ask("ShareGroupHeartbeat", 1, self._named(member, member_epoch=-1))

    def _ask(self, connection: str, api: str, version: int, fields: Fields) -> Any:
        """Kafka's answer. Raises EndOfStoryError."""
        self.asked += 1
        case = Case(f"request {self.asked}", api, version, fields)
        for side in self._sides:
            side.send(connection, case)
        answers = self._sides[0].receive(connection), self._sides[1].receive(connection)
        is_over = False
        for path, theirs, own in differences(api, *answers):
            difference = Difference(case, path, theirs, own, answers, tuple(self._before))
            reason = reason_of(difference)
            if reason is None:
                self.found.append(difference)
            else:
                self.explained[reason.why] += 1
            is_over |= reason is None or reason.ends
        self._before.append(case)
        if is_over:
            raise EndOfStoryError
        return answers[0]

    def _begin(self) -> None:
        """Settings, members that are assigned, what there is to read."""
        for key in self._dice.sample([*_SETTINGS], 4):
            self._set(key)
        joining = {"member_epoch": 0, "subscribed_topic_names": [name for name, *_ in TOPICS]}
        for member in self._members:
            for side in self._sides:
                while not (side.ask("ShareGroupHeartbeat", 1, self._named(member, **joining))["assignment"] or {}).get(
                    "topic_partitions"
                ):
                    time.sleep(0.02)
        first = self._members[0]
        for _ in range(3):
            self._append(first)
        # A real Kafka gives what it has loaded: here it loads all, one by one.
        wanted = {"max_wait_ms": 2_000, "min_bytes": 1, "max_bytes": 1_000_000, "max_records": 1, "batch_size": 1}
        for place in PLACES:
            opened = self._named(first, share_session_epoch=0, topics=_by_topic([place], {}), **wanted)
            self._ask(first.name, "ShareFetch", 1, opened)
            self._ask(first.name, "ShareAcknowledge", 2, self._named(first, share_session_epoch=-1))
        time.sleep(_SETTLE_SECONDS)

    def _end(self) -> None:
        """Without members offsets may be altered, and deleted with the group."""
        for member in self._members:
            if member.epoch:
                self._ask(member.name, "ShareAcknowledge", 1, self._named(member, share_session_epoch=-1))
            self._ask(member.name, "ShareGroupHeartbeat", 1, self._named(member, member_epoch=-1))
        for _ in range(2):
            self._alter_offsets(self._members[0])
            self._describe(self._members[0])
        self._ask("admin", "DeleteGroups", 2, {"groups_names": [self._group]})

    def _named(self, member: Member, **fields: Plain) -> Fields:
        return {"group_id": self._group, "member_id": member.name, **fields}

    def _is_odd(self, times: int = 1) -> bool:
        return all(self._dice.random() < ODD for _ in range(times))

    # --- What members ask ---------------------------------------------------------------------------------------------

    def _fetch(self, member: Member) -> None:
        dice = self._dice
        types = [RENEW] if dice.random() < 0.1 else [ACCEPT, REJECT, GAP]  # a release is seen at once, or later
        said = self._batches(member, types) if member.epoch and dice.random() < 0.5 else {}
        is_asking = not member.epoch or dice.random() < 0.3
        places = {*dice.sample(PLACES, dice.choice((1, 1, 1, 1, 2, 4)) if is_asking else 0), *said}
        forgotten = dice.sample(sorted(member.places), 1) if len(member.places) > 1 and dice.random() < 0.1 else []
        limits: dict[str, Plain] = {
            "max_wait_ms": _WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            # Of several partitions each broker begins with another one: none may take what is left to the next.
            "max_records": dice.choice((1, 3, 10, 100)) if len(member.places | places) < 2 else 10_000,
        }
        version = dice.choice((1, 2, 2, 2))
        if version == 2:
            is_renewal = _is_renewal(said) != self._is_odd(2)
            if is_renewal or self._is_odd():
                limits = dict.fromkeys(limits, 0)
            limits |= {"share_acquire_mode": dice.choice((0, 1)), "is_renew_ack": is_renewal}
        left = [{"topic_id": f"{{id of {topic}}}", "partitions": [number]} for topic, number in forgotten]
        limits |= {"batch_size": dice.choice((1, 3, 100)), "forgotten_topics_data": left}
        answer = self._in_session(member, "ShareFetch", version, places, said, "acknowledge_error_code", limits)
        if member.epoch and not answer["error_code"]:
            member.places = (member.places | places) - set(forgotten)
            for place, part in _parts(answer):
                for each in part["acquired_records"]:
                    member.held[place].update(range(each["first_offset"], each["last_offset"] + 1))

    def _acknowledge(self, member: Member) -> None:
        if not member.epoch and not self._is_odd():
            return self._fetch(member)
        said = self._batches(member, [ACCEPT, RELEASE, RELEASE, REJECT, GAP, RENEW])
        version = self._dice.choice((1, 2, 2))
        more = {"is_renew_ack": _is_renewal(said) != self._is_odd(2)} if version == 2 else {}
        self._in_session(member, "ShareAcknowledge", version, said, said, "error_code", more)
        return None

    def _in_session(
        self,
        member: Member,
        api: str,
        version: int,
        places: Iterable[Place],
        said: dict[Place, list[Batch]],
        code: str,
        more: Fields,
    ) -> Any:
        """Kafka's answer to a member, which goes on in its session, ends it, or has another epoch in mind."""
        dice = self._dice
        epoch = dice.choice((0, 1, 99)) if self._is_odd(2) else -1 if dice.random() < 0.06 else member.epoch
        fields = self._named(member, share_session_epoch=epoch, topics=_by_topic(places, said), **more)
        answer = self._ask(member.name, api, version, fields)
        if not answer["error_code"]:
            for place, part in _parts(answer):
                if not part[code]:
                    for first, last, types in said.get(place, ()):
                        kept = types == [RENEW]
                        member.held[place].difference_update(() if kept else range(first, last + 1))
            if epoch == -1:
                self._members[self._members.index(member)] = Member(member.name)
                time.sleep(_SETTLE_SECONDS)
            elif epoch == 0:
                member.places = set()
            member.epoch = epoch + 1
        return answer

    def _batches(self, member: Member, types: Sequence[int]) -> dict[Place, list[Batch]]:
        """Some of what the member has; now and then what nobody has."""
        dice = self._dice
        found: dict[Place, list[Batch]] = {}
        for place in PLACES:
            held = sorted(member.held[place])
            if held and dice.random() < 0.7:
                at = dice.randrange(len(held))
                for low, high in _ranges(held[at : at + dice.choice((1, 2, 5, 100))]):
                    each = dice.choices(types, k=1 if dice.random() < 0.6 else high - low + 1)
                    found.setdefault(place, []).append((low, high, each))
        if self._is_odd() or (not found and dice.random() < 0.3):
            first = dice.choice((0, 3, -1, 10_000))
            odd = first, first + dice.choice((0, 2, -1)), dice.choice(([1], [9], [], [1, 2], [-1]))
            found.setdefault(dice.choice((*PLACES, *PLACES, *ODD_PLACES)), []).append(odd)
        return found

    # --- What happens to their topics and their group -----------------------------------------------------------------

    def _append(self, _: Member) -> None:
        dice = self._dice
        rows = [(_BASE_TIME, None, b"v" * dice.randrange(9), ()) for _ in range(dice.choice((1, 1, 2, 5)))]
        self._produce(*dice.choice(PLACES[:3]), encode_batch(rows, codec=dice.choice((Codec.NONE, Codec.GZIP))))

    def _produce(self, topic: str, number: int, batch: bytes) -> None:
        topics = [{"name": topic, "partition_data": [{"index": number, "records": batch.hex()}]}]
        self._ask("producer", "Produce", 9, {"acks": -1, "timeout_ms": 30_000, "topic_data": topics})

    def _transact(self, _: Member) -> None:
        """A transaction of one batch, which is committed or aborted; the ids of producers are each broker's own."""
        (topic, number), commit = self._dice.choice(PLACES[:3]), self._dice.random() < 0.4
        rows = [(_BASE_TIME, None, b"t", ())] * self._dice.choice((1, 2))
        for side in self._sides:
            own = _of_transaction(side, "InitProducerId", 4, {"transaction_timeout_ms": 60_000})
            producer = {name: own[name] for name in ("producer_id", "producer_epoch")}
            batch = encode_batch(rows, **producer, base_sequence=0, transactional=True)
            data = [{"name": topic, "partition_data": [{"index": number, "records": batch.hex()}]}]
            _of_transaction(side, "Produce", 12, {"acks": -1, "timeout_ms": 30_000, "topic_data": data})
            _of_transaction(side, "EndTxn", 5, {**producer, "committed": commit})
            wanted = [{"name": topic, "partitions": [{"partition_index": number, "timestamp": -1}]}]
            ends = [{"replica_id": -1, "isolation_level": level, "topics": wanted} for level in (0, 1)]
            while len({str(side.ask("ListOffsets", 5, each)) for each in ends}) > 1:
                time.sleep(0.01)  # the marker is written behind the answer

    def _delete_records(self, member: Member) -> None:
        topic, number = self._dice.choice(PLACES[:3])
        offset = min(member.held[topic, number], default=0) + self._dice.choice((1, 3))
        topics = [{"name": topic, "partitions": [{"partition_index": number, "offset": offset}]}]
        self._ask("admin", "DeleteRecords", 2, {"topics": topics, "timeout_ms": 30_000})

    def _configure(self, _: Member) -> None:
        self._set(self._dice.choice([*_SETTINGS]))

    def _set(self, key: str) -> None:
        is_deleted = self._dice.random() < 0.2
        value = None if is_deleted else "soon" if self._is_odd() else self._dice.choice(_SETTINGS[key])
        configs = [{"name": key, "config_operation": int(is_deleted), "value": value}]
        resources = [{"resource_type": 32, "resource_name": self._group, "configs": configs}]
        self._ask("admin", "IncrementalAlterConfigs", 1, {"resources": resources})

    def _describe(self, _: Member) -> None:
        named = None if self._dice.random() < 0.5 else [{"topic_name": topic, "partitions": [n]} for topic, n in PLACES]
        groups = [{"group_id": "nobody's" if self._is_odd() else self._group, "topics": named}]
        self._ask("admin", "DescribeShareGroupOffsets", self._dice.choice((0, 1)), {"groups": groups})

    def _alter_offsets(self, _: Member) -> None:
        """Refused while there are members."""
        dice = self._dice
        topic, number = dice.choice((*PLACES, *ODD_PLACES))
        api, changed = "DeleteShareGroupOffsets", {}
        if dice.random() < 0.6:
            offset = dice.choice((0, 2, 5, 99_999, -1))
            api, changed = (
                "AlterShareGroupOffsets",
                {"partitions": [{"partition_index": number, "start_offset": offset}]},
            )
        self._ask("admin", api, 0, {"group_id": self._group, "topics": [{"topic_name": topic, **changed}]})


_STEPS: Final[dict[Callable[[Stories, Member], None], int]] = {
    Stories._fetch: 42,
    Stories._acknowledge: 30,
    Stories._append: 10,
    Stories._transact: 4,
    Stories._delete_records: 2,
    Stories._configure: 3,
    Stories._describe: 4,
    Stories._alter_offsets: 2,
}
"""And how often each is taken."""


def _of_transaction(side: Side, api: str, version: int, fields: Fields) -> Any:
    """The answer without an error; some pass."""
    while True:
        answer = side.ask(api, version, {"transactional_id": "t", **fields})
        parts = [part for topic in answer.get("responses", ()) for part in topic["partition_responses"]] or [answer]
        codes = {part["error_code"] for part in parts}
        if codes == {0}:
            return answer
        assert codes <= {14, 15, 16, 51}, answer
        time.sleep(0.02)


def _parts(answer: Any) -> Iterator[tuple[Place, Any]]:
    """What an answer says of each partition."""
    for topic in answer["responses"]:
        for part in topic["partitions"]:
            yield (topic["topic_id"].removeprefix("{id of ").rstrip("}"), part["partition_index"]), part


def _by_topic(places: Iterable[Place], said: dict[Place, list[Batch]]) -> list[Plain]:
    """Topics of a request."""
    names = ("first_offset", "last_offset", "acknowledge_types")
    found: dict[str, list[Plain]] = {}
    for topic, number in sorted(places):
        batches = [dict(zip(names, each, strict=True)) for each in said.get((topic, number), ())]
        found.setdefault(topic, []).append({"partition_index": number, "acknowledgement_batches": batches})
    return [{"topic_id": f"{{id of {topic}}}", "partitions": parts} for topic, parts in found.items()]


def _is_renewal(said: dict[Place, list[Batch]]) -> bool:
    return any(RENEW in types for batches in said.values() for *_, types in batches)


def _ranges(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of offsets in a row."""
    first = offsets[0]
    for last, following in zip(offsets, [*offsets[1:], -1], strict=True):
        if following != last + 1:
            yield first, last
            first = following
