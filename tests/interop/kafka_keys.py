"""Kafka's configuration keys and its answers about them: ``python -m tests.interop.kafka_keys`` writes both anew.

``broker/seglog_broker/config/kafka_keys.jsonl`` is derived from Kafka's jars (``KafkaKeys.java``).
``kafka_answers.json`` beside this module is what a real broker answered to DescribeConfigs, AlterConfigs and
IncrementalAlterConfigs; its documentation texts are kept as the first 12 digits of their SHA-256.
"""

import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.interop.kafka_admin import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    Admin,
    Entry,
    Outcome,
)
from tests.interop.kafka_cases import keep
from tests.interop.peer import JUDGE, KAFKA_VERSION, Kafka, kafka_script
from tests.support import REPOSITORY

VERSION: Final = KAFKA_VERSION
TABLE: Final = REPOSITORY / "broker/seglog_broker/config/kafka_keys.jsonl"
ANSWERS: Final = Path(__file__).with_name("kafka_answers.json")

NOTICE: Final = (
    f"Configuration keys of Apache Kafka {VERSION}, derived from its jars by tests/interop/kafka_keys.py. Names, "
    "defaults and documentation are Kafka's: Copyright The Apache Software Foundation, under the Apache License, "
    "Version 2.0. This product includes software developed at The Apache Software Foundation (https://www.apache.org/)."
)

STATIC: Final = (
    "log.retention.hours=24",
    "log.roll.ms=7200000",
    "log.roll.hours=3",
    "log.flush.scheduler.interval.ms=5000",
    "message.max.bytes=2000000",
    "log.cleanup.policy=compact",
)
"""Settings of the second broker that is asked: some under a weaker name, one under two names."""

Settings = dict[str, str]
Changes = Sequence[tuple[str, int, str | None]]


NONE: Final[Settings] = {}


class Case(NamedTuple):
    """One alteration: of a topic with the settings ``before``, or, if ``resource`` is another one, of that."""

    title: str
    changes: Changes
    before: Settings = NONE
    resource: int = TOPIC
    name: str = "altered"


_OWN: Final = {"cleanup.policy": "compact", "retention.ms": "1000"}

INCREMENTAL: Final = (
    Case("a value is set, others stay", [("segment.ms", SET, "7000")], _OWN),
    Case("several at once", [("segment.ms", SET, "7000"), ("retention.ms", DELETE, None)], _OWN),
    Case("no change at all", [], _OWN),
    Case("unknown key", [("nope", SET, "1")], _OWN),
    Case("unknown key beside a good one", [("segment.ms", SET, "7000"), ("nope", SET, "1")], _OWN),
    Case("empty key", [("", SET, "1")], _OWN),
    Case("broker key on a topic", [("log.retention.ms", SET, "1")], _OWN),
    Case("value of another type", [("retention.ms", SET, "soon")], _OWN),
    Case("empty value", [("retention.ms", SET, "")], _OWN),
    Case("value out of range", [("retention.ms", SET, "-2")], _OWN),
    Case("one of two values is bad", [("segment.ms", SET, "7000"), ("retention.ms", SET, "x")], _OWN),
    Case("no such choice", [("compression.type", SET, "foo")], _OWN),
    Case("neither true nor false", [("preallocate", SET, "maybe")], _OWN),
    Case("true in upper case", [("preallocate", SET, "TRUE")], _OWN),
    Case("spaces around a number", [("retention.ms", SET, " 5 ")], _OWN),
    Case("a number with its sign", [("retention.ms", SET, "+5")], _OWN),
    Case("a number with a unit", [("retention.ms", SET, "7d")], _OWN),
    Case("a small segment", [("segment.bytes", SET, "4096")], _OWN),
    Case("replicas in no format", [("leader.replication.throttled.replicas", SET, "x")], _OWN),
    Case("remote storage", [("remote.storage.enable", SET, "true")], _OWN),
    Case("no number at all", [("min.cleanable.dirty.ratio", SET, "NaN")], _OWN),
    Case("values that contradict", [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "5")], _OWN),
    Case("null is set", [("retention.ms", SET, None)], _OWN),
    Case("null is appended", [("cleanup.policy", APPEND, None)], _OWN),
    Case("null is subtracted", [("cleanup.policy", SUBTRACT, None)], _OWN),
    Case("a key twice", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], _OWN),
    Case("a key set and deleted", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], _OWN),
    Case("unknown operation", [("retention.ms", 9, "1")], _OWN),
    Case("a set key is deleted", [("retention.ms", DELETE, None)], _OWN),
    Case("deleted although a value is given", [("retention.ms", DELETE, "77")], _OWN),
    Case("an unset key is deleted", [("segment.ms", DELETE, None)], _OWN),
    Case("an unknown key is deleted", [("nope", DELETE, None)], _OWN),
    Case("appended to a number", [("retention.ms", APPEND, "1")], _OWN),
    Case("subtracted from a number", [("retention.ms", SUBTRACT, "1")], _OWN),
    Case("appended to an unknown key", [("nope", APPEND, "1")], _OWN),
    Case("appended", [("cleanup.policy", APPEND, "delete")], _OWN),
    Case("appended what is there", [("cleanup.policy", APPEND, "compact")], _OWN),
    Case("appended with spaces", [("cleanup.policy", APPEND, " delete , compact ")], _OWN),
    Case("appended to the default", [("cleanup.policy", APPEND, "compact")]),
    Case("appended to an empty list", [("cleanup.policy", APPEND, "delete")], {"cleanup.policy": ""}),
    Case("appended what is no choice", [("cleanup.policy", APPEND, "foo")], _OWN),
    Case("appended nothing", [("cleanup.policy", APPEND, "")], _OWN),
    Case("an empty word in the list", [("cleanup.policy", SET, "compact,,delete")], _OWN),
    Case("a word twice", [("cleanup.policy", SET, "delete,delete")], _OWN),
    Case("subtracted", [("cleanup.policy", SUBTRACT, "compact")], {"cleanup.policy": "delete,compact"}),
    Case("subtracted the last word", [("cleanup.policy", SUBTRACT, "compact")], _OWN),
    Case("subtracted what is not there", [("cleanup.policy", SUBTRACT, "delete")], _OWN),
    Case("subtracted from the default", [("cleanup.policy", SUBTRACT, "delete")]),
    Case("subtracted nothing", [("cleanup.policy", SUBTRACT, "")], _OWN),
    Case("an empty list is set", [("cleanup.policy", SET, "")], _OWN),
    Case("unknown topic", [("retention.ms", SET, "1")], name="unknown"),
    Case("empty topic", [("retention.ms", SET, "1")], name=""),
    Case("impossible topic", [("retention.ms", SET, "1")], name="a b"),
    Case("read-only broker key", [("num.partitions", SET, "3")], resource=BROKER, name="1"),
    Case("read-only key for all brokers", [("num.partitions", SET, "3")], resource=BROKER, name=""),
    Case("appended to a broker key", [("num.partitions", APPEND, "3")], resource=BROKER, name="1"),
    Case("a broker key is null", [("num.partitions", SET, None)], resource=BROKER, name="1"),
    Case("a broker key twice", [("num.partitions", SET, "1")] * 2, resource=BROKER, name="1"),
    Case("an unset broker key is deleted", [("num.partitions", DELETE, None)], resource=BROKER, name="1"),
    Case("no change of a broker", [], resource=BROKER, name="1"),
    Case("another broker", [("log.cleaner.threads", SET, "1")], resource=BROKER, name="2"),
    Case("no number of a broker", [("log.cleaner.threads", SET, "1")], resource=BROKER, name="x"),
    Case("dynamic broker key", [("log.cleaner.backoff.ms", SET, "15000")], resource=BROKER, name=""),
    Case("unknown broker key", [("nope", SET, "3")], resource=BROKER, name="1"),
    Case("no number for a broker", [("log.retention.ms", SET, "soon")], resource=BROKER, name="1"),
    Case("a broker key out of range", [("log.retention.ms", SET, "0")], resource=BROKER, name="1"),
    Case("appended to a number of a broker", [("log.retention.ms", APPEND, "5")], resource=BROKER, name="1"),
    Case("appended to a list of a broker", [("log.cleanup.policy", APPEND, "compact")], resource=BROKER, name="1"),
    Case("subtracted from it", [("log.cleanup.policy", SUBTRACT, "compact")], resource=BROKER, name="1"),
    Case("replicas in sync of one broker", [("min.insync.replicas", SET, "2")], resource=BROKER, name="1"),
    Case("unknown logger", [("nope", SET, "DEBUG")], resource=BROKER_LOGGER, name="1"),
    Case("appended to a logger", [("root", APPEND, "DEBUG")], resource=BROKER_LOGGER, name="1"),
    Case("the root logger is deleted", [("root", DELETE, None)], resource=BROKER_LOGGER, name="1"),
    Case("the root logger is set", [("root", SET, "INFO")], resource=BROKER_LOGGER, name="1"),
    Case("a logger of all brokers", [("root", SET, "INFO")], resource=BROKER_LOGGER, name=""),
    Case("a logger of another broker", [("root", SET, "INFO")], resource=BROKER_LOGGER, name="2"),
    Case("client metrics", [("interval.ms", SET, "1000")], resource=CLIENT_METRICS, name="set"),
    Case("unknown key of client metrics", [("nope", SET, "1")], resource=CLIENT_METRICS, name="x"),
    Case("client metrics without a name", [("interval.ms", SET, "1000")], resource=CLIENT_METRICS, name=""),
    Case("a group", [("consumer.session.timeout.ms", SET, "50000")], resource=GROUP, name="set"),
    Case("a short session of a group", [("consumer.session.timeout.ms", SET, "5000")], resource=GROUP, name="set"),
    Case("a long session of a group", [("consumer.session.timeout.ms", SET, "500000000")], resource=GROUP, name="set"),
    Case("many heartbeats of a group", [("consumer.heartbeat.interval.ms", SET, "1")], resource=GROUP, name="set"),
    Case("few heartbeats of a group", [("consumer.heartbeat.interval.ms", SET, "45000")], resource=GROUP, name="set"),
    Case("no number for a group", [("consumer.heartbeat.interval.ms", SET, "x")], resource=GROUP, name="set"),
    Case("appended to a group", [("consumer.heartbeat.interval.ms", APPEND, "5")], resource=GROUP, name="set"),
    Case("assignments of a group", [("consumer.assignment.interval.ms", SET, "14000")], resource=GROUP, name="set"),
    Case("an unknown key of a group is deleted", [("nope", DELETE, None)], resource=GROUP, name="set"),
    Case("unknown key of a group", [("nope", SET, "1")], resource=GROUP, name="x"),
    Case("a group without a name", [("consumer.session.timeout.ms", SET, "50000")], resource=GROUP, name=""),
    Case("unknown type of resource", [("nope", SET, "1")], resource=3, name="x"),
)

REPLACING: Final = (
    Case("other settings are dropped", [("segment.ms", SET, "7000")], _OWN),
    Case("everything is dropped", [], _OWN),
    Case("unknown key", [("nope", SET, "1")], _OWN),
    Case("bad value", [("retention.ms", SET, "soon")], _OWN),
    Case("null", [("retention.ms", SET, None)], _OWN),
    Case("a key twice", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], _OWN),
    Case("unknown topic", [("retention.ms", SET, "1")], name="unknown"),
    Case("read-only broker key", [("num.partitions", SET, "3")], resource=BROKER, name="1"),
    Case("no change of a broker", [], resource=BROKER, name="1"),
    Case("loggers", [("root", SET, "INFO")], resource=BROKER_LOGGER, name="1"),
)

NOT_DESCRIBED: Final = (
    (TOPIC, "unknown"),
    (TOPIC, ""),
    (TOPIC, "a b"),
    (BROKER, "2"),
    (BROKER, "x"),
    (BROKER_LOGGER, ""),
    (BROKER_LOGGER, "2"),
    (BROKER_LOGGER, "x"),
    (CLIENT_METRICS, ""),
    (GROUP, ""),
    (1, "x"),
    (99, "x"),
)
"""Resources to which Kafka answers with an error."""


def table() -> str:
    """The table of keys as the jars of this machine's Kafka have it."""
    done = subprocess.run(
        [kafka_script(), "run", str(Path(__file__).with_name("KafkaKeys.java"))],
        capture_output=True,
        check=True,
        timeout=300,
    )
    keys = [json.loads(line) for line in done.stdout.splitlines()]
    kept = [{name: value for name, value in key.items() if value is not None} for key in keys]
    lines = [json.dumps(line, ensure_ascii=False) for line in ({"kafka": VERSION, "notice": NOTICE}, *kept)]
    return "".join(f"{line}\n" for line in lines)


def answers(folder: Path) -> dict[str, Any]:
    """The answers of two real brokers, whose data are below ``folder``: one with defaults, one with ``STATIC``."""
    with Kafka(kafka_script(), folder / "default").running() as kafka, Admin(kafka.port) as admin:
        admin.create_topic("plain")
        admin.create_topic("altered")
        _settle()
        found: dict[str, Any] = {
            "kafka": VERSION,
            "topic": _rows(admin, TOPIC, "plain"),
            "broker": _without_places(_rows(admin, BROKER, "1"), kafka),
            "all_brokers": _rows(admin, BROKER, ""),
            "group": _rows(admin, GROUP, "new"),
            "client_metrics": _rows(admin, CLIENT_METRICS, "new"),
            "root_logger": [row for row in _rows(admin, BROKER_LOGGER, "1") if row[0] == "root"],
            "some_keys": [row[0] for row in _rows(admin, TOPIC, "plain", ["segment.ms", "nope", "retention.ms"])],
            "no_keys": len(_rows(admin, TOPIC, "plain", [])),
            "not_described": [[*resource, *admin.describe(*resource)[0]] for resource in NOT_DESCRIBED],
            "incremental": [_altered(admin, case, replacing=False) for case in INCREMENTAL],
            "replacing": [_altered(admin, case, replacing=True) for case in REPLACING],
        }
    with Kafka(kafka_script(), folder / "static").running(*STATIC) as kafka, Admin(kafka.port) as admin:
        admin.create_topic("plain")
        admin.create_topic("own", [("retention.ms", "1000"), ("cleanup.policy", "delete")])
        _settle()
        names = [name.split("=")[0] for name in STATIC]
        family = [*names, "log.retention.ms", "log.retention.minutes", "log.flush.interval.ms", "log.roll.jitter.ms"]
        found["static_topic"] = _rows(admin, TOPIC, "plain")
        found["own_topic"] = _rows(admin, TOPIC, "own")
        found["static_broker"] = _rows(admin, BROKER, "1", family)
    return found


def by_name(found: dict[str, Any]) -> dict[str, Any]:
    """Answers one by one: those of a list by the names of the list and of the row."""
    rows: dict[str, Any] = {}
    for section, value in found.items():
        for number, row in enumerate(value) if isinstance(value, list) else ():
            name = row["title"] if isinstance(row, dict) else row[0] if isinstance(row[0], str) else number
            rows[f"{section}: {name}"] = row
    return rows | {name: value for name, value in found.items() if not isinstance(value, list)}


def written(found: dict[str, Any]) -> str:
    """The text of ``kafka_answers.json``: a line for each entry."""
    return "{\n" + ",\n".join(_members(found)) + "\n}\n"


def digest(documentation: str | None) -> str | None:
    """What is kept of a documentation text."""
    return None if documentation is None else hashlib.sha256(documentation.encode()).hexdigest()[:12]


def row(entry: Entry) -> list[Any]:
    """What is kept of an entry."""
    return [*entry[:-1], digest(entry.documentation)]


def _members(found: dict[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], list | dict):
            lines = ",\n".join(json.dumps(line) for line in value)
            yield f"{json.dumps(name)}: [\n{lines}\n]"
        else:
            yield f"{json.dumps(name)}: {json.dumps(value)}"


def _rows(admin: Admin, resource: int, name: str, keys: Sequence[str] | None = None) -> list[list[Any]]:
    outcome, entries = admin.describe(resource, name, keys)
    assert outcome.code == 0, outcome
    return [row(entry) for entry in entries]


def _without_places(rows: list[list[Any]], kafka: Kafka) -> list[list[Any]]:
    """The rows with Kafka's usual ports, and without the directory of this run."""
    text = json.dumps(rows).replace(f":{kafka.port}", ":9092").replace(f":{kafka.port + 1}", ":9093")
    found: list[list[Any]] = json.loads(text.replace(str(kafka.data), "/kafka"))
    return found


def _altered(admin: Admin, case: Case, *, replacing: bool) -> dict[str, Any]:
    """The outcome of one case, when it is only validated and when it is done, and the topic's settings afterwards."""
    if case.name == "altered":
        assert admin.alter(TOPIC, "altered", list(case.before.items())).code == 0
        _settle()
    alter = partial(_replace, admin) if replacing else partial(_change, admin)
    validated, done = alter(case, validate_only=True), alter(case, validate_only=False)
    assert validated == done, case
    result: dict[str, Any] = {"title": case.title, "code": done.code, "message": done.message}
    if case.name == "altered":
        _settle()
        entries = admin.describe(TOPIC, "altered")[1]
        result["after"] = {entry.name: entry.value for entry in entries if entry.source == 1}
    return result


def _change(admin: Admin, case: Case, *, validate_only: bool) -> Outcome:
    return admin.alter_incrementally(case.resource, case.name, case.changes, validate_only=validate_only)


def _replace(admin: Admin, case: Case, *, validate_only: bool) -> Outcome:
    settings = [(name, value) for name, _, value in case.changes]
    return admin.alter(case.resource, case.name, settings, validate_only=validate_only)


def _settle() -> None:
    time.sleep(0.5)  # Kafka's broker learns of changes after its controller has confirmed them


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as folder:
        found = answers(Path(folder))
    if VERSION != JUDGE:
        keep(ANSWERS, found, by_name=by_name)
        return
    TABLE.write_text(table(), encoding="utf-8")
    ANSWERS.write_text(written(found), encoding="utf-8")


if __name__ == "__main__":
    main()
