"""A broker that random requests are asked of: what their names in braces stand for there, and its settled answers."""

import time
from contextlib import ExitStack
from typing import Any, Final, Self

from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.kafka_cases import NO_ID, UNKNOWN_ID, Case, Fields, create_topics, replaced, settled, topic_ids
from tests.interop.kafka_group_cases import await_coordinator
from tests.interop.kafka_random import CHANGES, CHANGING, CLASSIC, CONSUMER, EMPTY, KEPT, MEMBERS, PREPARED, Ask, Step
from tests.interop.kafka_wire import Plain, Wire, plain, request

_EPOCHS: Final = frozenset({"member_epoch", "group_epoch", "assignment_epoch", "generation_id_or_member_epoch"})
_SIGNS: Final = frozenset(
    {
        "port", "cluster_id", "total_bytes", "usable_bytes", "partition_size", "log_end_offset", "producer_id",
        "last_fetch_timestamp", "last_caught_up_timestamp", "replica_directory_id", "last_timestamp",
        "finalized_features_epoch", "throttle_time_ms",
    }
)  # fmt: skip
"""Fields of which only the sign is kept, or of text whether there is any."""

_BATCH_OVERHEAD: Final = 12

_NO_TOPIC: Final = "of no topic"
"""Stands for the id of a topic that there is not."""


class Side:
    """One broker. A context manager; ``settle`` (seconds) is given to it after changes."""

    def __init__(self, port: int, log_dir: str, settle: float = 0) -> None:
        self._port = port
        self._settle = settle
        self._log_dir = log_dir
        self._open = ExitStack()
        self._wires: dict[str, Wire] = {}
        self._first_epochs: dict[str, int] = {}
        self._made: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._known: dict[str, Plain] = {"{log_dir}": log_dir}
        for name in (*KEPT, *CHANGING):
            self._known[f"{{id of {name}}}"] = _absent(name)
        for group in (*CLASSIC, *CONSUMER, *EMPTY):
            self._known[f"{{generation {group}}}"] = -1
            for number in range(MEMBERS):
                self._forget(group, number)

    def __enter__(self) -> Self:
        create_topics(self._wire("admin"), PREPARED)
        time.sleep(self._settle * 5)
        self._await_leaders()
        self._await_coordinator()
        self._learn_topics()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def newest(self) -> dict[int, int]:
        """The last version of each api that the broker has."""
        software = {"client_software_name": "seglog", "client_software_version": "1"}
        return {each["api_key"]: each["max_version"] for each in self._ask("ApiVersions", 3, software)["api_keys"]}

    def answers(self, step: Step) -> list[Plain]:
        """The settled answers to requests that are sent together; None for a connection that was closed."""
        for number, asked in enumerate(step):
            case = asked.case
            self._wire(asked.connection).send(request(case.api, replaced(case.fields, self._known)), case.version)
            if number == 0 and len(step) > 1 and case.api == "JoinGroup":
                self._await_rebalance(case.fields["group_id"])
        found = []
        for asked in step:
            answer = plain(self._wire(asked.connection).receive())
            if answer is not None:
                self._learn(asked, answer)
            if asked.case.api in CHANGES:
                time.sleep(self._settle)
                self._await_leaders()
                self._learn_topics()
            found.append(self._settled(asked.case, answer))
        return found

    def _wire(self, connection: str) -> Wire:
        if connection not in self._wires:
            self._wires[connection] = self._open.enter_context(Wire(self._port))
        return self._wires[connection]

    def _ask(self, api: str, version: int, fields: Fields) -> Any:
        return plain(self._wire("control").ask(request(api, fields), version))

    def _await_leaders(self) -> None:
        """Return when the broker leads all partitions that it tells of: a real Kafka tells of them somewhat earlier."""
        for _ in range(600):
            wanted = [
                {
                    "name": topic["name"],
                    "partitions": [
                        {"partition_index": each["partition_index"], "timestamp": -1} for each in topic["partitions"]
                    ],
                }
                for topic in self._ask("Metadata", 12, {"topics": None})["topics"]
            ]
            answer = self._ask("ListOffsets", 5, {"replica_id": -1, "isolation_level": 0, "topics": wanted})
            found = {each["error_code"] for topic in answer["topics"] for each in topic["partitions"]}
            if ErrorCode.NOT_LEADER_OR_FOLLOWER not in found:
                return
            time.sleep(0.05)
        raise AssertionError("there are partitions without a leader")

    def _await_coordinator(self) -> None:
        await_coordinator(self._wire("control"))
        while self._ask("InitProducerId", 4, {"transactional_id": None, "transaction_timeout_ms": 60_000})[
            "error_code"
        ]:
            time.sleep(0.1)

    def _await_rebalance(self, group: str) -> None:
        """Return when a first member's request has begun a rebalance, which the others' requests are part of."""
        for _ in range(250):
            [described] = self._ask("DescribeGroups", 5, {"groups": [group]})["groups"]
            if described["group_state"] == "PreparingRebalance":
                return
            time.sleep(0.02)

    # --- What names stand for -----------------------------------------------------------------------------------------

    def _learn_topics(self) -> None:
        self._ids |= (found := topic_ids(self._wire("control")))
        for name in (*KEPT, *CHANGING):
            self._known[f"{{id of {name}}}"] = found.get(name, _absent(name))

    def _forget(self, group: str, number: int) -> None:
        where = f"{group} {number}"
        # Kafka's assignors go through members by Java's hashes: those of these names are in their order.
        self._known[f"{{member {where}}}"] = f"{group}-{2 * number}" if group in CONSUMER else ""
        self._known[f"{{epoch {where}}}"] = 0
        self._known[f"{{owned {where}}}"] = []

    def _learn(self, asked: Ask, answer: dict[str, Plain]) -> None:
        api, who = asked.case.api, asked.who
        if not who:
            if api == "DeleteGroups":
                for deleted in answer["results"]:
                    if deleted["error_code"] == 0:
                        self._first_epochs.pop(deleted["group_id"], None)
            return
        group, number = who.strip("{}").split()[1:]
        if api == "JoinGroup":
            if answer["member_id"]:
                self._known[who] = answer["member_id"]
                self._made[answer["member_id"]] = who
            if not answer["error_code"]:
                self._known[f"{{generation {group}}}"] = answer["generation_id"]
        elif api == "ConsumerGroupHeartbeat" and not answer["error_code"]:
            epoch = answer["member_epoch"]
            if epoch > 0:
                self._first_epochs.setdefault(group, epoch)
                self._known[f"{{epoch {group} {number}}}"] = epoch
            if answer["assignment"] is not None:
                self._known[f"{{owned {group} {number}}}"] = [
                    {"topic_id": item["topic_id"], "partitions": item["partitions"]}
                    for item in answer["assignment"]["topic_partitions"]
                ]
            if asked.case.fields["member_epoch"] == -1:
                self._forget(group, int(number))
        elif api == "LeaveGroup":
            self._forget(group, int(number))

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _settled(self, case: Case, answer: Plain) -> Plain:
        """An answer without what differs from run to run."""
        found = self._settled_with_ids(case, answer)
        if _NO_TOPIC in str(found):  # a topic that was made in between, as those of coordinators are
            self._learn_topics()
            found = self._settled_with_ids(case, answer)
        return found

    def _settled_with_ids(self, case: Case, answer: Plain) -> Plain:
        """The same, with the ids that are known."""
        shift = self._first_epochs.get(_group_of(case.fields), 1) - 1
        names = {id_: f"{{id of {name}}}" for name, id_ in self._ids.items()}
        names |= {_absent(name): f"{{no id of {name}}}" for name in (*KEPT, *CHANGING)}

        def scalar(field: str, value: Plain) -> Plain:
            if field in _EPOCHS and value > 0:
                return value - shift
            if field in _SIGNS and value is not None:
                return bool(value) if isinstance(value, str) else "negative" if value < 0 else "zero or more"
            if field == "aborted_transactions" and value is None:
                return []  # which says the same
            if field == "records" and value:
                return _whole_batches(value)
            if field == "topic_id" and value not in (*names, NO_ID, UNKNOWN_ID):
                return _NO_TOPIC  # which is only validated
            if isinstance(value, str):
                value = value.replace(self._log_dir, "{log_dir}")
                for member_id, who in self._made.items():
                    value = value.replace(member_id, who)
                return names.get(value, value)
            return value

        return settled(answer, scalar)


def _absent(name: str) -> str:
    """The id that requests have for a topic that is not there."""
    return f"{name.encode().hex():0>32}"


def _group_of(fields: Fields) -> str:
    for name in ("group_id", "groups", "group_ids"):
        match fields.get(name):
            case str(group) | [str(group)] | [{"group_id": str(group)}]:
                return group
    return ""


def _whole_batches(records: str) -> str:
    """Without the batch at the end that was cut: a Kafka sends a part of it."""
    data, position = bytes.fromhex(records), 0
    while position + _BATCH_OVERHEAD <= len(data):
        end = position + _BATCH_OVERHEAD + int.from_bytes(data[position + 8 : position + _BATCH_OVERHEAD])
        if end > len(data):
            break
        position = end
    return data[:position].hex()
