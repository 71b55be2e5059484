"""Kafka's clients over TLS, with certificates of their own, and with each mechanism of SASL.

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
from tests.certificates import HOSTS, Certificates, Files, certificates
from tests.interop.client_programs import PROGRAMS, Program, RefusedError, client
from tests.interop.clients.conversation import Record
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings
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
"""Spark's connector is Java's client."""

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
    """The port of each listener, and the native address of the daemon that has it."""

    ports: Mapping[str, int]
    natives: Mapping[str, str]
    certificates: Certificates
    own: Files


LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
REAUTH_MS: Final = 2_000
"""After so much time a login ends on SASL_PLAINTEXT."""
SECONDS: Final = 7.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two daemons: of one every listener, of the other MUTUAL."""
    folder = tmp_path_factory.mktemp("security")
    issuer = certificates(folder / "certificates")
    server = issuer.issue("broker", *HOSTS)
    ports: dict[str, int] = {}
    natives: dict[str, str] = {}
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
            natives |= dict.fromkeys(names, running.address)
        make_users(ports["PLAINTEXT"])
        yield Broker(ports, natives, issuer, issuer.issue("alice"))


@pytest.fixture(params=CLIENTS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    assert isinstance(request.param, Program)
    return request.param


def create(broker: Broker, way: Way, topic: str) -> str:
    with seglog.connect(broker.natives[way.listener]) as own:
        own.create_topic(topic, 1, config={"retention.ms": -1})  # the records are years old
    return topic


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
    topic = create(broker, way, f"{program.name}-{way.listener}-{way.mechanism}")
    with client(program, f"127.0.0.1:{broker.ports[way.listener]}", security(broker, way)) as running:
        running.login()
        assert running.produce(topic, 0, RECORDS, acks="all", codec="none") == 0
        if program.consumes:
            assert running.consume(topic, 0, 0, len(RECORDS)) == [(at, *sent) for at, sent in enumerate(RECORDS)]
        assert running.read_as_member(topic, f"{topic}-group", len(RECORDS)) == [(0, at) for at in range(len(RECORDS))]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_client_goes_on_beyond_the_end_of_its_session(broker: Broker, program: Program, mechanism: str) -> None:
    way = Way("SASL_PLAINTEXT", mechanism)
    topic = create(broker, way, f"{program.name}-{mechanism}")
    with client(program, f"127.0.0.1:{broker.ports[way.listener]}", security(broker, way)) as running:
        sent = 0
        while sent <= SECONDS:  # once, but on a busy machine
            sent += running.keep_on(topic, SECONDS)
    with seglog.connect(broker.natives[way.listener]) as own:
        assert own.offsets(topic)[0].latest >= sent


@pytest.mark.parametrize("way", [way for way in WAYS if way.mechanism], ids=lambda way: way.name)
def test_a_wrong_password_is_told_as_such(broker: Broker, program: Program, way: Way) -> None:
    if way.mechanism == "OAUTHBEARER" and program.name in UNAWARE:
        pytest.skip(f"{program.name} {UNAWARE[program.name]}")
    wrong = security(broker, way, password="wrong", token=unsecured_token(sub="alice", iat=1, exp=2))
    with client(program, f"127.0.0.1:{broker.ports[way.listener]}", wrong) as running:
        with pytest.raises(RefusedError) as refused:
            running.login()
        assert re.search(REFUSALS[program.name], str(refused.value)), refused.value
        assert "wrong" not in str(refused.value)


def test_a_client_without_a_certificate_is_refused_where_one_is_required(broker: Broker, program: Program) -> None:
    told = {"protocol": "SSL", "authority": str(broker.certificates.authority_file)}
    with client(program, f"127.0.0.1:{broker.ports['MUTUAL']}", told) as running, pytest.raises(RefusedError):
        running.login()
