"""The table of Kafka's keys: what it holds, when it is read, and that seglog's own keys agree with it."""

import json

import pytest

from seglog_broker.config.broker_config import BROKER_KEYS, TOPIC_DEFAULT_NAMES
from seglog_broker.config.group_keys import GROUP_KEYS, OffsetReset, offset_reset
from seglog_broker.config.kafka_configs import kafka_keys
from seglog_broker.config.keys import Key
from seglog_broker.config.topic_config import TOPIC_KEYS, TopicConfig
from tests.support import REPOSITORY, each_case

TABLE = REPOSITORY / "broker/seglog_broker/config/kafka_keys.jsonl"

OTHER_DEFAULTS = {
    *("log.dir", "listeners", "advertised.listeners"),
    *("group.initial.rebalance.delay.ms", "offsets.topic.num.partitions", "offsets.topic.segment.bytes"),
    *("transaction.state.log.num.partitions", "transaction.state.log.segment.bytes"),
    *("share.coordinator.state.topic.num.partitions", "share.coordinator.state.topic.segment.bytes"),
    *("socket.send.buffer.bytes", "socket.receive.buffer.bytes"),
    *("node.id", "process.roles", "controller.listener.names", "inter.broker.listener.name", "broker.rack"),
    *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
    *("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.certificates", "ssl.key.password"),
    *("ssl.provider", "ssl.secure.random.implementation", "sasl.kerberos.service.name", "sasl.enabled.mechanisms"),
    *("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.expected.issuer"),
}
"""Broker keys with a default of seglog's own: a directory that stays, addresses of this machine alone, what measured
best; PEM for JKS and SCRAM for GSSAPI; and where Kafka has none."""


def test_the_table_names_its_origin_and_its_licence() -> None:
    notice = json.loads(TABLE.read_text(encoding="utf-8").splitlines()[0])
    assert notice["kafka"] == "4.4.0"
    assert "Apache License, Version 2.0" in notice["notice"]


def test_the_table_has_all_keys_of_kafka() -> None:
    counts = [len(kafka_keys(resource)) for resource in ("topic", "broker", "group", "client_metrics")]
    assert counts == [37, 350, 21, 3]
    retention = kafka_keys("topic")["retention.ms"]
    assert (retention.type, retention.default) == ("LONG", "604800000")
    assert retention.synonyms == ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    assert kafka_keys("broker")["log.retention.ms"].dynamic == "cluster-wide"
    assert kafka_keys("broker")["listeners"].dynamic == "per-broker"
    assert kafka_keys("broker")["num.partitions"].dynamic == ""
    assert {key.name for key in kafka_keys("broker").values() if key.is_sensitive} >= {"ssl.keystore.password"}


INTERNAL = {
    *(
        "log.initial.task.delay.ms",
        "producer.id.expiration.check.interval.ms",
        "super.users",
        "allow.everyone.if.no.acl.found",
    ),
    *("share.coordinator.state.topic.prune.interval.ms", "share.coordinator.cold.partition.snapshot.interval.ms"),
    "allow.everyone.if.no.acl.found",
}
"""Keys that Kafka has, too, but does not describe; super.users and the last one belong to its authorizer."""


def _type_of(key: Key) -> str:
    """The type in Kafka's word: of the list ``log.dir`` seglog takes exactly one."""
    return "LIST" if key.name == "log.dir" else key.kind.type_name.upper()


def test_seglogs_topic_keys_have_kafkas_types_defaults_and_synonyms() -> None:
    known = kafka_keys("topic")
    described = {line.key: (line.value, line.is_default) for line in TopicConfig().describe()}
    for key in TOPIC_KEYS.values():
        if key.name.startswith("seglog."):
            assert key.name not in known
            continue
        kafka = known[key.name]
        assert (key.kind.type_name.upper(), key.text(key.default)) == (kafka.type, kafka.default), key.name
        assert described[key.name] == (kafka.default, True)
        assert tuple(synonym.name for synonym in key.synonyms) == kafka.synonyms, key.name
    assert set(known) <= set(TOPIC_KEYS), "every topic key of Kafka can be set here"


def test_seglogs_broker_keys_have_kafkas_types_and_defaults() -> None:
    known = kafka_keys("broker")
    shared = [key for key in BROKER_KEYS.values() if key.name in known]
    own = {name for name in BROKER_KEYS if name.startswith("seglog.")}
    assert BROKER_KEYS.keys() - {key.name for key in shared} == own | INTERNAL
    assert set(TOPIC_DEFAULT_NAMES) <= set(known)
    for key in shared:
        assert _type_of(key) == known[key.name].type, key.name
    differing = {key.name for key in shared if key.text(key.default) != known[key.name].default}
    assert differing == OTHER_DEFAULTS


def test_the_keys_of_groups_have_kafkas_types_and_defaults() -> None:
    known = kafka_keys("group")
    for key in GROUP_KEYS.values():
        kafka = known[key.name]
        assert (key.kind.type_name.upper(), key.text(key.default)) == (kafka.type, kafka.default), key.name


@each_case(
    ("text", "value"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("by_duration:PT0S", 0),
        ("by_duration:P1DT2H3M4.5678S", 93_784_567),
        ("by_duration:-PT-1m", 60_000),
        ("by_duration:PT1H-30,25S", 3_569_750),
        *((text, None) for text in ("", "Latest", "by_duration", "by_duration:", "by_duration:P", "by_duration:PT")),
        *((text, None) for text in ("by_duration:-PT1S", "by_duration:1D", "PT1S", "none", "by_duration:P1Y")),
    ],
)
def test_where_a_share_group_begins_is_read_as_in_kafka(text: str, value: str | int | None) -> None:
    if value is None:
        with pytest.raises(ValueError, match="must be earliest, latest, or by_duration"):
            OffsetReset().parse(text)
    else:
        assert (OffsetReset().parse(text), offset_reset(text)) == (text, value)
