"""Kafka's clients over TLS, with certificates of their own, and with each mechanism of SASL; and with each codec.

What they send to a real Kafka that lets them in is in ``kafka_login_captures.json``, and what it answers in
``kafka_security_answers.json``.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

import pytest

import seglog
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import iter_batches
from tests.certificates import HOSTS, Certificates, Files, certificates
from tests.interop.client_programs import KAFKA_CLIENTS, client_steps
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings
from tests.interop.sasl_client import MECHANISMS, unsecured_token, valid_token
from tests.interop.sasl_conversation import USERS
from tests.processes import Daemon, daemon

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

each_client = pytest.mark.parametrize("name", KAFKA_CLIENTS)


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
    """The port of each listener, and the daemon that has it."""

    ports: Mapping[str, int]
    daemons: Mapping[str, Daemon]
    certificates: Certificates
    own: Files


LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
REAUTH_MS: Final = 2_000
"""After so much time a login ends on SASL_PLAINTEXT; clients go on for 7 s."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two daemons: of one every listener, of the other MUTUAL."""
    folder = tmp_path_factory.mktemp("security")
    issuer = certificates(folder / "certificates")
    server = issuer.issue("broker", *HOSTS)
    ports: dict[str, int] = {}
    daemons: dict[str, Daemon] = {}
    with ExitStack() as ends:
        for names, listening, asked in ((LISTENERS, LISTENERS, "none"), (("MUTUAL",), ("SSL",), "required")):
            more = {"ssl.client.auth": asked}
            if asked == "none":
                more["listener.name.sasl_plaintext.connections.max.reauth.ms"] = str(REAUTH_MS)
            settings = daemon_settings(listening, server=server.together, authority=issuer.authority_file, more=more)
            running = ends.enter_context(daemon(folder / asked, *settings))
            (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
            found = [int(address.rsplit(":", 1)[1]) for address in ready["kafka"].split(",")]
            ports |= zip(names, found, strict=True)
            daemons |= dict.fromkeys(names, running)
        make_users(ports["PLAINTEXT"])
        yield Broker(ports, daemons, issuer, issuer.issue("alice"))


def told(
    broker: Broker,
    way: Way,
    name: str,
    steps: str,
    password: str = USERS["alice"],
    token: str | None = None,
    **more: str,
) -> dict[str, str]:
    """What a client says to each of the steps, to a topic that is named after it and the way."""
    given = {"PROTOCOL": "SSL" if way.listener == "MUTUAL" else way.listener, **more}
    if "SSL" in given["PROTOCOL"]:
        given["AUTHORITY"] = str(broker.certificates.authority_file)
    if way.listener == "MUTUAL":
        given |= {"CHAIN": str(broker.own.chain), "KEY": str(broker.own.key)}
    if way.mechanism == "OAUTHBEARER":
        given |= {"MECHANISM": way.mechanism, "USER": "alice", "TOKEN": token or valid_token()}
    elif way.mechanism:
        given |= {"MECHANISM": way.mechanism, "USER": "alice", "PASSWORD": password}
    return client_steps(name, f"127.0.0.1:{broker.ports[way.listener]}", topic_of(name, way), steps, **given)


def topic_of(name: str, way: Way) -> str:
    return f"{name}-{way.listener}-{way.mechanism}"


@each_client
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_client_produces_and_consumes(broker: Broker, name: str, way: Way) -> None:
    """With each codec, beside what ours has produced with it."""
    topic, codecs = topic_of(name, way), KAFKA_CLIENTS[name].split()
    with seglog.connect(broker.daemons[way.listener].address) as own:
        own.create_topic(topic)
        for codec in codecs:
            with own.producer(topic, compression=codec) as producer:
                for _ in range(3):
                    producer.send(b"v" * 1000, key=b"k")
        given = {"CODECS": " ".join(codecs), "RECORDS": str(6 * len(codecs))}
        found = told(broker, way, name, "login produce group", **given)
        assert found == dict.fromkeys(found, "")
        with own.consumer(topic) as consumer:
            assert [(record.key, record.value) for record in consumer] == [(b"k", b"v" * 1000)] * 6 * len(codecs)
        (committed,) = own.group_offsets(topic)
        assert committed.offset == 6 * len(codecs)
    (path,) = (broker.daemons[way.listener].directory / f"{topic}-0").glob("*.log")
    batches = [header for header, _ in iter_batches(memoryview(path.read_bytes()))]
    ours, theirs = ({b.codec for b in batches if (b.base_offset < 3 * len(codecs)) == mine} for mine in (True, False))
    assert ours == theirs == {Codec[codec.upper()] for codec in codecs}


@each_client
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_client_goes_on_beyond_the_end_of_its_session(broker: Broker, name: str, mechanism: str) -> None:
    way = Way("SASL_PLAINTEXT", mechanism)
    with seglog.connect(broker.daemons[way.listener].address) as own:
        own.create_topic(topic_of(name, way), exist_ok=True)
    assert told(broker, way, name, "go_on") == {"go_on": ""}


@each_client
@pytest.mark.parametrize("way", [way for way in WAYS if way.mechanism], ids=lambda way: way.name)
def test_a_wrong_password_is_told_as_such(broker: Broker, name: str, way: Way) -> None:
    if way.mechanism == "OAUTHBEARER" and name in UNAWARE:
        pytest.skip(f"{name} {UNAWARE[name]}")
    expired = unsecured_token(sub="alice", iat=1, exp=2)
    refused = told(broker, way, name, "login", password="wrong", token=expired)["login"]
    assert re.search(REFUSALS[name], refused), refused
    assert "wrong" not in refused


@each_client
def test_a_client_without_a_certificate_is_refused_where_one_is_required(broker: Broker, name: str) -> None:
    given = {"PROTOCOL": "SSL", "AUTHORITY": str(broker.certificates.authority_file)}
    assert client_steps(name, f"127.0.0.1:{broker.ports['MUTUAL']}", "t", "login", **given)["login"] != ""
