"""Kafka's clients over TLS, with certificates of their own, and with each mechanism of SASL.

Each test runs against a daemon and, so that somebody else judges the test, against a real Kafka.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.certificates import HOSTS, Certificates, Files, certificates
from tests.interop.client_programs import PROGRAMS, Program, RefusedError, client
from tests.interop.clients.conversation import Record
from tests.interop.kafka_cases import create_topics
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings, kafka_settings
from tests.interop.kafka_wire import Wire
from tests.interop.peer import Kafka, free_ports, kafka_script
from tests.interop.sasl_client import MECHANISMS, unsecured_token, valid_token
from tests.interop.sasl_conversation import USERS
from tests.processes import daemon

pytestmark = [pytest.mark.timeout(300)]

REFUSALS: Final[Mapping[str, str]] = {
    "kafka-python": "SaslAuthenticationFailed",
    "confluent-kafka": "_AUTHENTICATION",
    "aiokafka": "AuthenticationFailed",
    "java": "SaslAuthenticationException",
    "franz-go": "SASL_AUTHENTICATION_FAILED",
    "kafkajs": "KafkaJSSASLAuthenticationError",
}
"""What each client says when it is not let in, and nothing else."""

UNAWARE: Final = {
    "java": "makes its own token, and no invalid one",
    "aiokafka": "does not look at how a token is answered",
    "kafkajs": "does not look at how a token is answered",
    "franz-go": "does not expect the words of the broker, and says so",
}
"""Why a client does not tell that its token is not accepted."""

CLIENTS: Final = tuple(program for program in PROGRAMS if program.name in REFUSALS)
"""kcat is librdkafka as confluent-kafka is, Spark's connector is Java's client, and sarama brings no SCRAM."""

RECORDS: Final[list[Record]] = [(b"key", b"value %d" % number, [], 1_700_000_000_000) for number in range(20)]


class Way(NamedTuple):
    """How a client connects: the listener, and the mechanism, if it has one."""

    listener: str
    mechanism: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, self))


WAYS: Final = (
    Way("SSL"),
    Way("MUTUAL"),
    *(Way(listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
)


@dataclass(frozen=True)
class Broker:
    """A daemon or a Kafka, with the port of each listener."""

    name: str
    ports: Mapping[str, int]
    certificates: Certificates
    own: Files


LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@contextmanager
def seglog_broker(folder: Path, issuer: Certificates) -> Iterator[Mapping[str, int]]:
    server = issuer.issue("broker", *HOSTS)
    with ExitStack() as ends:
        ports: dict[str, int] = {}
        for names, asked in ((LISTENERS, "none"), (("PLAINTEXT", "SSL"), "required")):
            settings = daemon_settings(
                names, server=server.together, authority=issuer.authority_file, more={"ssl.client.auth": asked}
            )
            running = ends.enter_context(daemon(folder / asked, *settings))
            (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
            found = dict(
                zip(names, (int(address.rsplit(":", 1)[1]) for address in ready["kafka"].split(",")), strict=True)
            )
            make_users(found["PLAINTEXT"])
            ports = {"MUTUAL": found["SSL"], "BESIDE": found["PLAINTEXT"]} | ports if ports else found
        yield ports


@contextmanager
def real_broker(folder: Path, issuer: Certificates) -> Iterator[Mapping[str, int]]:
    server = issuer.issue("broker", *HOSTS)
    kafka = Kafka(kafka_script(), folder / "kafka")
    ports = {"PLAINTEXT": kafka.port} | {name: free_ports() for name in (*LISTENERS[1:], "MUTUAL")}
    protocols = {name: "SSL" if name == "MUTUAL" else name for name in ports}
    settings = kafka_settings(
        ports,
        kafka.port + 1,
        protocols,
        server=server.together,
        authority=issuer.authority_file,
        more={"listener.name.mutual.ssl.client.auth": "required"},
    )
    with kafka.running(*settings):
        make_users(kafka.port)
        yield ports


@pytest.fixture(scope="module", params=(seglog_broker, real_broker), ids=("seglog", "kafka"))
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("security")
    issuer = certificates(folder / "certificates")
    with request.param(folder, issuer) as ports:
        yield Broker(request.param.__name__, ports, issuer, issuer.issue("alice"))


@pytest.fixture(params=CLIENTS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    assert isinstance(request.param, Program)
    return request.param


def security(broker: Broker, way: Way, password: str = USERS["alice"], token: str | None = None) -> dict[str, str]:
    """What a client is told, as ``conversation`` has it."""
    told = {"protocol": "SSL" if way.listener == "MUTUAL" else way.listener}
    if "SSL" in told["protocol"]:
        told["authority"] = str(broker.certificates.authority_file)
    if way.listener == "MUTUAL":
        told |= {"chain": str(broker.own.chain), "key": str(broker.own.key)}
    if way.mechanism == "OAUTHBEARER":
        told |= {"mechanism": way.mechanism, "user": "alice", "token": valid_token() if token is None else token}
    elif way.mechanism:
        told |= {"mechanism": way.mechanism, "user": "alice", "password": password}
    return told


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_client_produces_and_consumes(broker: Broker, program: Program, way: Way) -> None:
    topic = f"{program.name}-{way.listener}-{way.mechanism}"
    admin = (
        broker.ports.get("BESIDE", broker.ports["PLAINTEXT"]) if way.listener == "MUTUAL" else broker.ports["PLAINTEXT"]
    )
    with Wire(admin) as wire:
        config = [{"name": "retention.ms", "value": "-1"}]
        create_topics(wire, [{"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": config}])
    with client(program, f"127.0.0.1:{broker.ports[way.listener]}", security(broker, way)) as running:
        running.login()
        assert running.produce(topic, 0, RECORDS, acks="all", codec="none") == 0
        if program.consumes:
            assert running.consume(topic, 0, 0, len(RECORDS)) == [(at, *sent) for at, sent in enumerate(RECORDS)]
        assert running.read_as_member(topic, f"{topic}-group", len(RECORDS)) == [(0, at) for at in range(len(RECORDS))]


@pytest.mark.parametrize("way", [way for way in WAYS if way.mechanism], ids=lambda way: way.name)
def test_a_wrong_password_is_told_as_such(broker: Broker, program: Program, way: Way) -> None:
    if way.mechanism == "OAUTHBEARER" and program.name in UNAWARE:
        pytest.skip(f"{program.name} {UNAWARE[program.name]}")
    wrong = security(broker, way, password="wrong", token=unsecured_token(sub="alice", iat=1, exp=2))
    with client(program, f"127.0.0.1:{broker.ports[way.listener]}", wrong) as running:
        with pytest.raises(RefusedError) as refused:
            running.login()
        may_be_lost = (program.name, broker.name) == ("kafka-python", "real_broker")  # which closes as it answers
        assert may_be_lost or re.search(REFUSALS[program.name], str(refused.value)), refused.value
        assert "wrong" not in str(refused.value)


def test_a_client_without_a_certificate_is_refused_where_one_is_required(broker: Broker, program: Program) -> None:
    told = {"protocol": "SSL", "authority": str(broker.certificates.authority_file)}
    with client(program, f"127.0.0.1:{broker.ports['MUTUAL']}", told) as running, pytest.raises(RefusedError):
        running.login()
