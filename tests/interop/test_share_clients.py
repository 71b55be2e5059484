"""Clients of share groups see here what they see of a Kafka: Java's, confluent-kafka, franz-go, Kafka's own tools."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.foreign_programs import installed, run, skipped_where_absent, tools
from tests.interop.client_programs import CLIENTS, environment_of
from tests.interop.client_versions import Row, make_java
from tests.interop.kafka_tools import Tools
from tests.interop.peer import Kafka, kafka_script
from tests.processes import kafka_daemon

pytestmark = [pytest.mark.timeout(900)]

JAVA: Final = ("4.3.1", "4.4.0")
FRANZ: Final = "github.com/twmb/franz-go/pkg/kgo@v1.22.3"
RECORDS: Final = "3000"
"""Of franz-go's largest test."""

SETTINGS: Final = ("group.share.min.record.lock.duration.ms=1000", "group.share.assignment.interval.ms=0")
KAFKA_SETTINGS: Final = ("offsets.topic.num.partitions=1", "share.coordinator.state.topic.num.partitions=1")


class Ports(NamedTuple):
    """Of both brokers."""

    kafka: int
    ours: int


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("share")
    with ExitStack() as stack:
        kafka = stack.enter_context(Kafka(kafka_script(), folder / "kafka").running(*SETTINGS, *KAFKA_SETTINGS))
        ours = stack.enter_context(kafka_daemon(folder / "seglog", *SETTINGS))
        yield Ports(kafka.port, ours.kafka_port)


def told(command: Sequence[str], **environment: str) -> str:
    """What a program prints, and its errors where it fails."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=400, check=False
    )
    return done.stdout + (done.stderr[-1000:] if done.returncode else "")


def steps(said: str) -> dict[str, str]:
    """What was seen by the step."""
    return dict(line.split("\t", 1) for line in said.splitlines() if "\t" in line)


# --- Each client: what it saw of a broker, by the step ----------------------------------------------------------------


def java(version: str, port: int, name: str) -> dict[str, str]:
    make = partial(make_java, Row("Java", version), program="ShareSteps")
    folder = installed(f"share-java-{version}", [CLIENTS / "ShareSteps.java"], make)
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{folder}:{folder}/*", "ShareSteps"]
    return steps(told([*command, f"127.0.0.1:{port}", name]))


def confluent(port: int, name: str) -> dict[str, str]:
    return steps(told([str(environment_of()), str(CLIENTS / "share_steps.py"), f"127.0.0.1:{port}", name]))


def franz(port: int, _name: str) -> dict[str, str]:
    """franz-go's own tests, of the module as it is published."""

    def make(folder: Path) -> None:
        run("go", "mod", "init", "share", cwd=folder)
        run("go", "get", "-t", FRANZ, cwd=folder)

    tools("go")
    folder = installed("share-franz-go", [Path(__file__)], make)
    command = ["go", "test", "-C", str(folder), "-vet=off", "-v", "-count=1", "-run", "TestShareGroup"]
    kgo = {"KGO_SEEDS": f"127.0.0.1:{port}", "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": RECORDS}
    said = told([*command, FRANZ.partition("@")[0]], **kgo)
    return {test: outcome for outcome, test in re.findall(r"^--- (\w+): (\w+)", said, re.MULTILINE)}


def kafkas_tools(port: int, name: str) -> dict[str, str]:
    """The tools that come with Kafka; times, rates and the order of sets are left out."""
    kafka, group, found = Tools(port), f"{name}-group", {}
    kafka.run("topics", arguments=("--create", "--topic", name))
    kafka.run("console-producer", arguments=("--topic", name), stdin="".join(f"{number}\n" for number in range(40)))
    entity = ("--entity-type", "groups", "--entity-name", group)
    kafka.run("configs", arguments=("--alter", *entity, "--add-config", "share.auto.offset.reset=earliest"))
    for tool, *arguments in TOOLS:
        words = [word.format(topic=name, group=group) for word in arguments]
        said = kafka.run("run", tool, arguments=tuple(words))
        said = re.sub(r'"timestamp":\d+|"offsets":\[[\d,]*\]|\d{4}-\d\d-\d\d .*|:\d{5}', "", said)
        found[" ".join([tool, *arguments[:3]])] = re.sub(r" +", " ", said.replace(name, "{topic}"))
    return found


TOOLS: Final = (
    ("consumer.ConsoleShareConsumer", "--topic", "{topic}", "--group", "{group}", "--max-messages", "10"),
    (
        *("VerifiableShareConsumer", "--topic", "{topic}", "--group-id", "{group}-2", "--max-messages", "40"),
        *("--offset-reset-strategy", "earliest", "--acknowledgement-mode", "sync"),
    ),
    ("ShareConsumerPerformance", "--topic", "{topic}", "--group", "{group}", "--num-records", "10"),
    ("consumer.group.ShareGroupCommand", "--describe", "--state", "--group", "{group}"),
    ("consumer.group.ShareGroupCommand", "--describe", "--members", "--group", "{group}"),
    (
        *("consumer.group.ShareGroupCommand", "--reset-offsets", "--group", "{group}", "--topic", "{topic}"),
        *("--to-earliest", "--execute"),
    ),
    ("consumer.group.ShareGroupCommand", "--describe", "--offsets", "--group", "{group}"),
    ("consumer.group.ShareGroupCommand", "--delete-offsets", "--group", "{group}", "--topic", "{topic}"),
    ("consumer.group.ShareGroupCommand", "--delete", "--group", "{group}"),
)

CLIENTS_TRIED: Final[Mapping[str, Callable[[int, str], dict[str, str]]]] = {
    **{f"Java {version}": partial(java, version) for version in JAVA},
    "confluent-kafka": confluent,
    "franz-go": franz,
    "Kafka's tools": kafkas_tools,
}


@pytest.mark.parametrize("client", CLIENTS_TRIED)
def test_what_a_kafka_shows_is_seen_here(client: str, ports: Ports) -> None:
    name = f"share-{os.urandom(3).hex()}"
    with skipped_where_absent(client):
        kafka, ours = (CLIENTS_TRIED[client](port, name) for port in ports)
    for step, seen in kafka.items():
        print(f"{client}, {step}\n  Kafka: {seen.strip()}\n  here:  {ours.get(step, 'nothing').strip()}")
    assert kafka
    assert ours == kafka
    assert not [step for step, seen in kafka.items() if seen.startswith(("failed", "FAIL", "SKIP"))]
