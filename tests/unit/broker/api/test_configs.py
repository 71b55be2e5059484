"""Configuration as Kafka's clients see and alter it, beside the answers of a real Kafka (kafka_answers.json)."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.api.describe_configs import (
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_loggers,
    describe_topic,
)
from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.config.broker_config import BROKER_KEYS, CONFIG_NAMES
from seglog_broker.config.dynamic_config import DYNAMIC_KEYS, FILE_ONLY, READ_ONLY
from seglog_broker.config.group_keys import GROUP_KEYS
from seglog_broker.config.kafka_configs import (
    Alteration,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    Operation,
    ResourceType,
    kafka_keys,
)
from seglog_broker.config.keys import Effect
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.messages import CreateTopicRequest
from tests.interop.kafka_keys import ANSWERS, INCREMENTAL, NOT_DESCRIBED, REPLACING, STATIC, Case, digest
from tests.logs import ManualClock
from tests.support import each_case
from tests.unit.broker.brokers import open_broker

PLACES: Final = "each has its own addresses and directory"
CONTROLLER: Final = "seglog has no listener and no quorum of controllers"
HIDDEN: Final = "a weaker name that was set in vain is not remembered"

FEWER: Final = "one node needs no more partitions, and smaller segments are compacted sooner"

BUFFERS: Final = "other sizes measured better"
PEM: Final = "certificates are PEM"

DIFFERENT_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "topic": {},
    "static_topic": {"segment.ms": HIDDEN},
    "own_topic": {"segment.ms": HIDDEN},
    "broker": {
        "log.dir": PLACES,
        "log.dirs": PLACES,
        "listeners": PLACES,
        "listener.security.protocol.map": CONTROLLER,
        "controller.listener.names": CONTROLLER,
        "controller.quorum.bootstrap.servers": CONTROLLER,
        "group.initial.rebalance.delay.ms": "that Kafka was started with 0",
        "offsets.topic.num.partitions": FEWER,
        "offsets.topic.segment.bytes": FEWER,
        "transaction.state.log.num.partitions": FEWER,
        "transaction.state.log.segment.bytes": FEWER,
        "share.coordinator.state.topic.num.partitions": FEWER,
        "share.coordinator.state.topic.segment.bytes": FEWER,
        "socket.send.buffer.bytes": BUFFERS,
        "socket.receive.buffer.bytes": BUFFERS,
        "ssl.keystore.type": PEM,
        "ssl.truststore.type": PEM,
        "sasl.enabled.mechanisms": "there is no GSSAPI",
    },
    "static_broker": {"log.roll.ms": HIDDEN, "log.roll.hours": HIDDEN},
    "group": {},
    "client_metrics": {},
    "root_logger": {},
}
"""Where value, source or the values of synonyms are not Kafka's, and why."""

READ_ONLY_HERE: Final = {"client_metrics", "root_logger"}
"""What Kafka changes at run time, and seglog does not."""

NEED_A_RESTART: Final = {
    "listeners",
    "sasl.enabled.mechanisms",
    "listener.security.protocol.map",
    "log.cleaner.threads",
    "num.recovery.threads.per.data.dir",
}
"""Keys with an effect that Kafka changes at run time, and seglog at a restart."""

INTERNAL: Final = {
    *(
        "log.initial.task.delay.ms",
        "producer.id.expiration.check.interval.ms",
        "super.users",
        "allow.everyone.if.no.acl.found",
    ),
    *("share.coordinator.state.topic.prune.interval.ms", "share.coordinator.cold.partition.snapshot.interval.ms"),
    "allow.everyone.if.no.acl.found",
}
"""Keys that Kafka has, too, but does not describe: super.users and the last one are its authorizer's."""

OTHER_OUTCOMES: Final[Mapping[str, tuple[int, str]]] = {
    "a number with a unit": (0, "seglog reads numbers with units everywhere"),
    "a small segment": (0, "seglog takes segments of 1024 bytes and more"),
    "remote storage": (0, "the key is accepted, with a warning, and has no effect"),
    "no number at all": (40, "a ratio is a number"),
    "unknown operation": (42, "Kafka answers with an error of its own making, UNKNOWN_SERVER_ERROR"),
    "read-only broker key": (0, "seglog reads it wherever it is used"),
    "read-only key for all brokers": (0, "as above"),
    "unknown broker key": (42, "Kafka keeps it for its plugins"),
    "the root logger is set": (42, "the level is a key of the broker"),
    "client metrics": (42, "seglog collects no metrics of clients"),
    "assignments of a group": (40, "nothing would read it"),
}
"""The error codes of alterations that Kafka answers in another way, and why."""


@cache
def answers() -> Any:
    return json.loads(ANSWERS.read_text(encoding="utf-8"))


def config_of(*flags: str) -> BrokerConfig:
    return load_config(None, "", {}, flags)[0]


def ours(name: str) -> list[ConfigEntry]:
    """What seglog says where ``name`` is Kafka's answer."""
    match name:
        case "topic":
            return describe_topic({}, LiveConfig(config_of()))
        case "static_topic":
            return describe_topic({}, LiveConfig(config_of(*STATIC)))
        case "own_topic":
            return describe_topic({"retention.ms": "1000", "cleanup.policy": "delete"}, LiveConfig(config_of(*STATIC)))
        case "broker":
            return describe_broker(LiveConfig(config_of()))
        case "static_broker":
            return describe_broker(LiveConfig(config_of(*STATIC)), [row[0] for row in answers()[name]])
        case "group":
            return describe_group("g", LiveConfig(config_of()))
        case "client_metrics":
            return describe_client_metrics()
    assert name == "root_logger"
    return describe_loggers(config_of())


def facts(row: Sequence[Any]) -> list[Any]:
    """What is the same whatever is set: name, sensitive, type, documentation."""
    return [row[0], row[4], row[6], row[7]]


def values(row: Sequence[Any]) -> list[Any]:
    """Value, source, synonyms."""
    return [row[1], row[3], row[5]]


def row_of(entry: ConfigEntry) -> list[Any]:
    """An entry as Kafka's are kept."""
    synonyms = [[name, value, int(source)] for name, value, source in entry.synonyms]
    kept = [entry.name, entry.value, entry.is_read_only, int(entry.source), entry.is_sensitive]
    return [*kept, synonyms, int(entry.type), digest(entry.documentation)]


@each_case("name", DIFFERENT_VALUES)
def test_every_key_of_kafka_is_described_as_kafka_describes_it(name: str) -> None:
    rows = {row[0]: row for row in map(row_of, ours(name))}
    kafka = {row[0]: row for row in answers()[name]}
    assert [facts(rows[key]) for key in kafka] == [facts(row) for row in kafka.values()]
    if name in READ_ONLY_HERE:
        assert all(rows[key][2] for key in kafka)
    elif name == "group":
        assert {key for key in kafka if not rows[key][2]} == GROUP_KEYS.keys()
    elif name.endswith("broker"):
        assert {key for key in kafka if not rows[key][2]} == kafka.keys() & (DYNAMIC_KEYS.keys() - READ_ONLY)
    else:
        assert [rows[key][2] for key in kafka] == [row[2] for row in kafka.values()]
    differing = {key for key, row in kafka.items() if values(rows[key]) != values(row)}
    assert differing == set(DIFFERENT_VALUES[name])
    for key in kafka:
        names, theirs = ([synonym[0] for synonym in row[key][5]] for row in (rows, kafka))
        assert set(names) == set(theirs) or key in DIFFERENT_VALUES[name]


@each_case("name", ["topic", "broker", "group", "client_metrics", "root_logger"])
def test_other_keys_are_seglogs_own_and_all_are_in_the_order_of_names(name: str) -> None:
    names = [entry.name for entry in ours(name)]
    assert names == sorted(set(names))
    own = set(names) - {row[0] for row in answers()[name]}
    assert {key for key in own if not key.startswith("seglog.")} == (INTERNAL if name == "broker" else set())
    assert bool(own) == (name == "broker")


def test_every_key_of_the_broker_can_be_seen_with_its_value_type_and_documentation() -> None:
    entries = {entry.name: entry for entry in describe_broker(LiveConfig(config_of("seglog.fetch.max.wait.ms.max=7")))}
    assert set(entries) >= CONFIG_NAMES
    entry = entries["seglog.fetch.max.wait.ms.max"]
    assert (entry.value, entry.type, entry.source) == (
        "7",
        ConfigType.INT,
        ConfigSource.STATIC_BROKER_CONFIG,
    )
    assert [tuple(synonym) for synonym in entry.synonyms] == [
        ("seglog.fetch.max.wait.ms.max", "7", ConfigSource.STATIC_BROKER_CONFIG),
        ("seglog.fetch.max.wait.ms.max", "300000", ConfigSource.DEFAULT_CONFIG),
    ]
    assert "a fetch may wait" in entry.documentation


def test_the_broker_shows_its_number_its_directory_and_what_the_process_knows_better() -> None:
    actual = {"advertised.listeners": "PLAINTEXT://kafka.example:9092"}
    config = config_of("log.dir=/var/lib/seglog", "num.partitions=4")
    found = {entry.name: entry for entry in describe_broker(LiveConfig(config), actual=actual)}
    shown = {name: found[name].value for name in ("node.id", "broker.id", "log.dir", "log.dirs", "num.partitions")}
    assert shown == {
        "node.id": "1",
        "broker.id": "1",
        "log.dir": "/var/lib/seglog",
        "log.dirs": "/var/lib/seglog",
        "num.partitions": "4",
    }
    assert found["advertised.listeners"].value == actual["advertised.listeners"]
    assert found["advertised.listeners"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert found["offsets.topic.replication.factor"].value == "1", "one node"


@pytest.mark.parametrize(
    ("text", "environment", "flags"),
    [
        ('"log.retention.hours" = 24', {}, []),
        (None, {"SEGLOG_LOG_RETENTION_HOURS": "24"}, []),
        (None, {}, ["log.retention.hours=24"]),
    ],
)
def test_a_value_is_shown_under_the_name_it_was_set_with_wherever_that_was(
    text: str | None, environment: dict[str, str], flags: list[str]
) -> None:
    config, _ = load_config(text, "seglogd.toml", environment, flags)
    names = ["log.retention.ms", "log.retention.minutes", "log.retention.hours"]
    assert {entry.name: entry.value for entry in describe_broker(LiveConfig(config), names)} == {
        "log.retention.ms": None,
        "log.retention.minutes": None,
        "log.retention.hours": "24",
    }
    [topic] = describe_topic({}, LiveConfig(config), ["retention.ms"])
    assert topic.value == "86400000"


@pytest.mark.parametrize(("written", "shown"), [("-5", "-1"), ("1h", "1")])
def test_hours_without_end_and_hours_with_a_unit_are_shown_as_hours(written: str, shown: str) -> None:
    [entry] = describe_broker(LiveConfig(config_of(f"log.retention.hours={written}")), ["log.retention.hours"])
    assert entry.value == shown


def test_a_level_is_that_of_the_log_in_log4js_words() -> None:
    assert [entry[:2] for entry in describe_loggers(config_of("seglog.log.level=warning"))] == [("root", "WARN")]
    assert describe_loggers(config_of(), ["kafka"]) == []


# --- With a broker ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with the topics ``plain`` and ``altered``."""
    broker = open_broker(clock=ManualClock(1))
    for topic in ("plain", "altered"):
        await broker.create_topic(CreateTopicRequest(topic, 1))
    yield broker
    broker.close()


async def alter(broker: Broker, *changes: Alteration, **how: bool) -> None:
    """Of the topic ``altered``."""
    await broker.configs.alter(ResourceType.TOPIC, "altered", list(changes), **how)


def own_settings(broker: Broker) -> dict[str, str | None]:
    entries = broker.configs.describe(ResourceType.TOPIC, "altered")
    return {entry.name: entry.value for entry in entries if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}


def names(entries: Iterable[ConfigEntry]) -> list[str]:
    return [entry.name for entry in entries]


async def test_keys_are_asked_for_by_name_and_none_means_all(broker: Broker) -> None:
    some = names(broker.configs.describe(ResourceType.TOPIC, "plain", ["segment.ms", "nope", "retention.ms"]))
    assert some == answers()["some_keys"] == ["retention.ms", "segment.ms"]
    every = broker.configs.describe(ResourceType.TOPIC, "plain")
    assert broker.configs.describe(ResourceType.TOPIC, "plain", []) == every
    assert answers()["no_keys"] == len(answers()["topic"])
    for resource, name in {ResourceType.BROKER: "1", ResourceType.GROUP: "g", ResourceType.CLIENT_METRICS: "m"}.items():
        [first, *_] = names(broker.configs.describe(resource, name))
        assert names(broker.configs.describe(resource, name, [first, "nope"])) == [first]


async def test_settings_for_all_brokers_and_spellings_of_numbers(broker: Broker) -> None:
    """Of a new cluster there is one setting for all brokers, and a number may be written as Kafka reads it."""
    described = [row_of(entry) for entry in broker.configs.describe(ResourceType.BROKER, "")]
    assert described == answers()["all_brokers"]
    assert [row[0] for row in described] == ["min.insync.replicas"]
    assert broker.configs.describe(ResourceType.BROKER, "+01") == broker.configs.describe(ResourceType.BROKER, "1")


@pytest.mark.parametrize("case", range(len(NOT_DESCRIBED)), ids=[f"{kind} {name!r}" for kind, name in NOT_DESCRIBED])
async def test_what_kafka_does_not_describe_is_refused_with_its_error(broker: Broker, case: int) -> None:
    resource, name, code, _ = answers()["not_described"][case]
    assert (resource, name) == NOT_DESCRIBED[case]
    with pytest.raises(errors.SeglogError) as raised:
        broker.configs.describe(resource, name)
    assert raised.value.kafka_code == code


async def outcome(broker: Broker, case: Case, **how: bool) -> int:
    """Kafka's error code, 0 for none."""
    try:
        await broker.configs.alter(case.resource, case.name, [Alteration(*change) for change in case.changes], **how)
    except errors.SeglogError as error:
        return error.kafka_code
    return 0


CASES: Final = [("incremental", case) for case in INCREMENTAL] + [("replacing", case) for case in REPLACING]


@each_case(("kind", "case"), CASES, ids=[f"{kind}: {case.title}" for kind, case in CASES])
async def test_an_alteration_ends_as_it_does_in_kafka_or_differs_with_a_reason(
    broker: Broker, kind: str, case: Case
) -> None:
    [kafka] = [answer for answer in answers()[kind] if answer["title"] == case.title]
    before = [Alteration(name, Operation.SET, value) for name, value in case.before.items()]
    await alter(broker, *before, replaces=True)
    assert own_settings(broker) == case.before
    expected = kafka["code"]
    if case.title in OTHER_OUTCOMES:
        expected, _ = OTHER_OUTCOMES[case.title]
        assert expected != kafka["code"], "no difference any more"
    replaces = kind == "replacing"

    assert await outcome(broker, case, replaces=replaces, validate_only=True) == expected
    assert own_settings(broker) == case.before, "nothing changes when it is only validated"
    assert await outcome(broker, case, replaces=replaces) == expected
    if expected == kafka["code"]:
        assert own_settings(broker) == kafka.get("after", case.before)
    elif expected:
        assert own_settings(broker) == case.before


def test_the_list_of_other_outcomes_names_cases() -> None:
    assert set(OTHER_OUTCOMES) <= {case.title for case in INCREMENTAL}


async def test_an_alteration_is_in_force_at_once_and_after_a_power_cut(broker: Broker, fs: ForgetfulFileSystem) -> None:
    changes = (("cleanup.policy", Operation.APPEND, "compact"), ("segment.ms", Operation.SET, "7000"))
    await alter(broker, *(Alteration(*change) for change in changes))
    assert broker.partitions["altered", 0].log.config.segment_ms == 7000
    found = open_broker(fs.found_after(POWER_LOSS), clock=ManualClock(1))
    assert found.directory.registry.topics["altered"].config == {
        "cleanup.policy": "delete,compact",
        "segment.ms": "7000",
    }
    found.close()


async def test_appends_to_a_list_at_the_same_time_lose_nothing(broker: Broker) -> None:
    key = "leader.replication.throttled.replicas"
    async with trio.open_nursery() as nursery:
        for replica in ("0:1", "1:1", "2:1"):
            nursery.start_soon(alter, broker, Alteration(key, Operation.APPEND, replica))
    assert sorted((own_settings(broker)[key] or "").split(",")) == ["0:1", "1:1", "2:1"]


async def test_a_setting_without_effect_is_logged_because_the_answer_cannot_say_so(broker: Broker) -> None:
    change = Alteration("preallocate", Operation.SET, "true")
    with capture_logs() as logged:
        await alter(broker, change, validate_only=True)
        assert logged == []
        await alter(broker, change)
    [warning] = [entry for entry in logged if entry["event"] == "config_warning"]
    assert warning["topic"] == "altered"
    assert "preallocate" in warning["reason"]


async def test_everything_described_can_be_written_back(broker: Broker) -> None:
    """Clients that know only AlterConfigs read all settings, change one, and write all."""
    entries = broker.configs.describe(ResourceType.TOPIC, "altered")
    written = [Alteration(entry.name, Operation.SET, entry.value) for entry in entries if not entry.is_read_only]
    await alter(broker, *written, replaces=True)
    assert own_settings(broker) == {entry.name: entry.value for entry in entries}


async def test_the_other_name_of_a_key_sets_and_deletes_it(broker: Broker) -> None:
    name = "internal.segment.bytes"
    await alter(broker, Alteration(name, Operation.SET, "4096"))
    assert own_settings(broker) == {"segment.bytes": "4096"}
    await alter(broker, Alteration(name, Operation.DELETE))
    assert own_settings(broker) == {}


def test_what_kafka_changes_at_run_time_is_changed_here_too() -> None:
    """All but a few keys, of which something is made at the start; and of those without effect no other."""
    changed = {name for name, key in kafka_keys("broker").items() if key.dynamic}
    by_files_alone = {name for name in changed if name.startswith(FILE_ONLY)}
    assert (changed & CONFIG_NAMES) - DYNAMIC_KEYS.keys() - by_files_alone == NEED_A_RESTART
    without_effect = {key.name for key in BROKER_KEYS.values() if key.effect is not Effect.NOW}
    assert without_effect & DYNAMIC_KEYS.keys() == without_effect & changed
