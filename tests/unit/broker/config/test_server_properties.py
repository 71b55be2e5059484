"""Kafka's own configuration files of a single node: taken as they are, with one line about what has no effect."""

import pytest

from seglog_broker.config import BrokerConfig, load_config, served_listeners
from seglog_broker.config.sources import parse_properties
from seglog_protocol.errors import InvalidConfigError
from tests.support import each_case

LOG = """
log.dirs=/tmp/kafka-logs
num.partitions=3
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
log.retention.hours=168
#log.retention.bytes=1073741824
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
SOCKETS = """
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
"""
ZOOKEEPER = f"""# Kafka 3 with ZooKeeper
broker.id=0
#listeners=PLAINTEXT://:9092
{SOCKETS}{LOG}
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""
KRAFT_3 = f"""# Kafka 3 without
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
{SOCKETS}{LOG}
"""
KRAFT_4 = (
    KRAFT_3.replace("controller.quorum.voters=1@localhost:9093", "controller.quorum.bootstrap.servers=localhost:9093")
    .replace("PLAINTEXT://localhost:9092", "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093")
    .replace("num.partitions=3", "num.partitions=3\nshare.coordinator.state.topic.replication.factor=1")
    .replace("min.isr=1", "min.isr=1\nshare.coordinator.state.topic.min.isr=1", 1)
)

ZOOKEEPER_IDLE = "num.io.threads, num.network.threads, zookeeper.connect, zookeeper.connection.timeout.ms"
KRAFT_IDLE = (
    "controller.listener.names, {}, inter.broker.listener.name, num.io.threads, num.network.threads, process.roles"
)


def load(text: str) -> tuple[BrokerConfig, list[str]]:
    return load_config(text, "server.properties", {}, [])


@pytest.mark.parametrize(
    ("text", "node_id", "idle"),
    [
        (ZOOKEEPER, 0, ZOOKEEPER_IDLE),
        (KRAFT_3, 1, KRAFT_IDLE.format("controller.quorum.voters")),
        (KRAFT_4, 1, KRAFT_IDLE.format("controller.quorum.bootstrap.servers")),
    ],
    ids=["zookeeper", "3", "4"],
)
def test_the_file_that_kafka_ships_is_taken_with_one_line(text: str, node_id: int, idle: str) -> None:
    config, warnings = load(text.replace("PLAINTEXT://:9092,CONT", "PLAINTEXT://localhost:9092,CONT"))
    assert warnings == [f'{idle}: no effect here. "Keys without effect" in docs/CONFIG.md says why.']
    assert (config.node_id, config.log_dir, config.num_partitions) == (node_id, "/tmp/kafka-logs", 3)
    assert (config.socket_send_buffer_bytes, config.topic_defaults.retention_ms) == (102_400, 604_800_000)
    assert [(name, port) for name, _, port, *_ in served_listeners(config)] == [("PLAINTEXT", 9092)]


@pytest.mark.parametrize("text", [KRAFT_3, KRAFT_4], ids=["3", "4"])
def test_but_what_it_opens_to_everyone_has_to_be_said(text: str) -> None:
    """Kafka's own example listens on every address, and asks nobody who they are."""
    with pytest.raises(InvalidConfigError) as caught:
        load(text)
    assert caught.value.message == (
        "listeners = PLAINTEXT://:9092,CONTROLLER://:9093 cannot be used: whoever reaches 0.0.0.0:9092 could read, "
        "write and delete everything, as PLAINTEXT asks nobody who they are. Use SASL_SSL (accounts), or set "
        "seglog.open.to.everyone=true where the network lets in nobody else."
    )
    _, warnings = load(f"{text}\nseglog.open.to.everyone=true\n")
    assert "PLAINTEXT of listeners is open to everyone who reaches 0.0.0.0:9092" in " ".join(warnings)


def test_replicas_that_there_are_none_of_are_named_with_their_number() -> None:
    _, warnings = load("offsets.topic.replication.factor=3\nnum.io.threads=8\ntransaction.state.log.min.isr=1")
    assert warnings == [
        (
            'num.io.threads, offsets.topic.replication.factor = 3: no effect here. "Keys without effect" in '
            "docs/CONFIG.md says why."
        )
    ]
    _, warnings = load("offsets.topic.replication.factor=3")
    assert warnings == [
        (
            'offsets.topic.replication.factor (file server.properties: "offsets.topic.replication.factor") is accepted '
            "but has no effect here: one node has no replicas."
        )
    ]


@each_case(
    ("text", "found"),
    [
        ("a=1\nb = 2\n  c:3\nd 4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# a=1\n  ! b=2\n\nc=", {"c": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=one,\\\n   two,\\\n   three\nb=1", {"a": "one,two,three", "b": "1"}),
        ("a=C:\\\\logs\\\\", {"a": "C:\\logs\\"}),
        ("a\\ b\\=c=\\u00e9\\t.", {"a b=c": "é\t."}),
        ("a=1\r\nb=x = y : z", {"a": "1", "b": "x = y : z"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found
