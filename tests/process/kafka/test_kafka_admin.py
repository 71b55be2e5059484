"""Administration through Kafka's protocol: what a daemon offers beside a real Kafka, and Kafka's own tools."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import seglog
from seglog_broker.listeners.kafka.handlers.cluster import FEATURES
from tests.interop.kafka_admin_cases import ANSWERS
from tests.interop.kafka_cases import kept
from tests.interop.kafka_tools import Tools
from tests.interop.kafka_wire import Wire, plain, request
from tests.processes import Daemon, daemon
from tests.support import each_case
from tests.unit.clients.mirror.sides import commit

ON_ANY_PORT = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "data", *ON_ANY_PORT) as running:
        yield running


@each_case("version", range(3, 6))
def test_every_version_and_feature_that_is_offered_is_one_of_kafkas(running: Daemon, version: int) -> None:
    kafka = kept(ANSWERS)[f"the versions, version {version}"]
    theirs = {api["api_key"]: (api["min_version"], api["max_version"]) for api in kafka["api_keys"]}
    asked = request("ApiVersions", {"client_software_name": "seglog", "client_software_version": "1"})
    with Wire(running.kafka_port) as wire:
        ours = plain(wire.ask(asked, version))
    for api in ours["api_keys"]:
        low, high = theirs[api["api_key"]]
        assert low <= api["min_version"] <= api["max_version"] <= high, api
    assert ours["supported_features"] == [each for each in kafka["supported_features"] if each["name"] in FEATURES]
    levels, in_force = (
        {each["name"]: each["max_version_level"] for each in side["finalized_features"]} for side in (kafka, ours)
    )
    assert in_force == {name: levels[name] for name in FEATURES} | {"metadata.version": 30}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_kafkas_own_tools_administer_a_broker(running: Daemon, tmp_path: Path) -> None:
    tools = Tools(running.kafka_port)
    create = ("--create", "--topic")
    tools.run("topics", arguments=(*create, "t", "--partitions", "2", "--config", "retention.ms=100000"))
    refused = tools.run("topics", arguments=(*create, "three", "--replication-factor", "3"), fails=True)
    assert "InvalidReplicationFactorException" in refused
    assert tools.run("topics", arguments=("--list",)).split() == ["t"]
    tools.run("topics", arguments=("--alter", "--topic", "t", "--partitions", "3"))
    described = tools.run("topics", arguments=("--describe", "--topic", "t"))
    configs = "min.insync.replicas=1,retention.ms=100000"
    assert re.search(rf"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: {configs}", described)
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3

    tools.run("topics", arguments=(*create, "one"))
    tools.run("console-producer", arguments=("--topic", "one"), stdin="".join(f"{number}\n" for number in range(20)))
    assert tools.run("offsets", arguments=("--topic", "one")).split() == ["one:0:20"]
    deletion = tmp_path / "deletion.json"
    deletion.write_text('{"partitions": [{"topic": "one", "partition": 0, "offset": 5}], "version": 1}')
    told = tools.run("run", "DeleteRecordsCommand", arguments=("--offset-json-file", str(deletion)))
    assert re.search(r"one-0\s+low_watermark: 5", told)
    assert tools.run("offsets", arguments=("--topic", "one", "--time", "earliest")).split() == ["one:0:5"]
    largest = tools.run("offsets", arguments=("--topic", "one", "--time", "max-timestamp"))
    assert re.fullmatch(r"one:0:(?:[5-9]|1\d)\n", largest)
    read = ("--topic", "one", "--from-beginning", "--max-messages", "15", "--timeout-ms", "60000")
    told = tools.run("console-consumer", arguments=(*read, "--partition", "0"))
    assert told.split() == [str(number) for number in range(5, 20)]

    topic = ("--entity-type", "topics", "--entity-name", "t")
    added = "retention.ms=5000,cleanup.policy=[compact,delete]"
    tools.run("configs", arguments=(*topic, "--alter", "--add-config", added))
    tools.run("configs", arguments=(*topic, "--alter", "--delete-config", "retention.ms"))
    told = tools.run("configs", arguments=(*topic, "--describe"))
    assert "cleanup.policy=compact,delete" in told
    assert "retention.ms" not in told
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    told = tools.run("configs", arguments=(*broker, "--describe", "--all"))
    assert f"advertised.listeners=PLAINTEXT://127.0.0.1:{running.kafka_port} " in told
    assert f"log.dirs={running.directory}" in told
    told = tools.run("configs", arguments=(*broker, "--alter", "--add-config", "log.cleaner.threads=2"), fails=True)
    assert "Cannot update these configs dynamically" in told

    carol = ("--entity-type", "users", "--entity-name", "carol")
    made = "SCRAM-SHA-256=[iterations=8192,password=carol-secret]"
    tools.run("configs", arguments=(*carol, "--alter", "--add-config", made))
    assert "are SCRAM-SHA-256=iterations=8192" in tools.run("configs", arguments=(*carol, "--describe"))
    tools.run("configs", arguments=(*carol, "--alter", "--delete-config", "SCRAM-SHA-256"))
    assert "SCRAM" not in tools.run("configs", arguments=(*carol, "--describe"))

    for kind, entity, key, value in (
        ("users", ("--entity-default",), "producer_byte_rate", "1024.0"),
        ("clients", ("--entity-name", "c"), "request_percentage", "1.5"),
        ("ips", ("--entity-name", "10.0.0.1"), "connection_creation_rate", "2.0"),
    ):
        quoted = ("--entity-type", kind, *entity)
        tools.run("configs", arguments=(*quoted, "--alter", "--add-config", f"{key}={value}"))
        assert f" are {key}={value}" in tools.run("configs", arguments=(*quoted, "--describe"))
        tools.run("configs", arguments=(*quoted, "--alter", "--delete-config", key))
        assert key not in tools.run("configs", arguments=(*quoted, "--describe"))

    commit(f"127.0.0.1:{running.kafka_port}", "readers", "one", 7)
    groups = ("--group", "readers")
    [told] = re.findall("readers .*", tools.run("consumer-groups", arguments=("--describe", *groups)))
    assert told.split()[1:6] == ["one", "0", "7", "20", "13"]
    reset = ("--reset-offsets", "--topic", "one", "--shift-by", "-1", "--execute")
    assert re.search(r"readers +one +0 +6", tools.run("consumer-groups", arguments=(*groups, *reset)))
    told = tools.run("consumer-groups", arguments=("--delete-offsets", "--topic", "one:0", *groups))
    assert "Successful" in told
    told = tools.run("consumer-groups", arguments=("--list", "--state"))
    assert re.search(r"readers +Empty", told)
    assert "was successful" in tools.run("consumer-groups", arguments=("--delete", *groups))

    told = tools.run("log-dirs", arguments=("--describe", "--topic-list", "one"))
    [directory] = json.loads(told.splitlines()[-1])["brokers"][0]["logDirs"]
    assert directory["logDir"] == str(running.directory)
    assert [(found["partition"], found["size"] > 0) for found in directory["partitions"]] == [("one-0", True)]

    told = tools.run("run", "MetadataQuorumCommand", arguments=("describe", "--status"))
    assert re.search(r"LeaderId:\s+1\n", told)
    told = tools.run("run", "FeatureCommand", arguments=("describe",))
    assert re.search(r"metadata\.version\s.*FinalizedVersionLevel: 4\.3-IV0", told)
    preferred = ("--election-type", "preferred", "--all-topic-partitions")
    tools.run("run", "LeaderElectionCommand", arguments=preferred)
    told = tools.run("run", "reassign.ReassignPartitionsCommand", arguments=("--list",))
    assert "No partition reassignments found." in told
    told = tools.run("run", "TransactionsCommand", arguments=("list",))
    assert len(told.splitlines()) == 1
    producers = ("describe-producers", "--topic", "one", "--partition", "0")
    assert len(tools.run("run", "TransactionsCommand", arguments=producers).splitlines()) == 2
    assert "ListConfigResources(74): 0 to 1" in tools.run("run", "BrokerApiVersionsCommand")
    tools.run("topics", arguments=("--delete", "--topic", "t"))
    assert tools.run("topics", arguments=("--list",)).split() == ["__consumer_offsets", "one"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_kafkas_own_tool_shows_and_ends_open_transactions(running: Daemon) -> None:
    tools = Tools(running.kafka_port)

    def ask(*arguments: str) -> list[list[str]]:
        """The words of each line below the heading."""
        told = tools.run("run", "TransactionsCommand", arguments=arguments)
        return [line.split() for line in told.splitlines()[1:]]

    partition = ("--topic", "t", "--partition", "0")

    def forget(txn: seglog.Transaction) -> None:
        """Leave a transaction open until the tool has ended it."""
        with txn:
            txn.send("t", b"never counts").result()
            [[name, _, producer, state]] = ask("list")
            assert (name, state) == ("forgotten", "Ongoing")
            [described] = ask("describe", "--transactional-id", "forgotten")
            assert described[1:5] == ["forgotten", producer, "0", "Ongoing"]
            assert described[-1] == "t-0"
            [found] = ask("describe-producers", *partition)
            assert (found[0], found[-1]) == (producer, "0")  # the offset where its transaction begins
            assert ask("find-hanging", *partition, "--max-transaction-timeout", "0") == []  # it is known
            ask("forceTerminateTransaction", "--transactionalId", "forgotten")
            assert [row[-1] for row in ask("list")] == ["Empty"]

    with seglog.connect(running.address) as client:
        client.create_topic("t")
        with pytest.raises(seglog.TransactionFenced):
            forget(client.transaction("forgotten"))
        with client.consumer("t", isolation="read_committed") as consumer:
            assert list(consumer) == []
        [offsets] = client.offsets("t")
        assert offsets.last_stable == offsets.latest
