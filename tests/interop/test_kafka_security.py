"""Kafka's clients over TLS, with certificates of their own, and with each mechanism of SASL; and with each codec.

What they send to a real Kafka that lets them in is in ``kafka_login_captures.json``, and what it answers, to those as
well whom it refuses, in ``kafka_security_answers.json``.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest

import seglog
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import iter_batches
from tests.certificates import HOSTS, certificates
from tests.interop.client_programs import KAFKA_CLIENTS, client_steps
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings
from tests.interop.sasl_client import MECHANISMS, valid_token
from tests.interop.sasl_conversation import USERS
from tests.processes import Daemon, daemon

pytestmark = [pytest.mark.timeout(300)]

LISTENERS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
WAYS: Final = (
    ("SSL", ""),
    ("MUTUAL", ""),
    *((listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
)
"""How a client connects: the listener, and the mechanism, if it has one."""


class Listening(NamedTuple):
    """A listener: its daemon, its port, and what a client is told to come to it."""

    daemon: Daemon
    port: int
    told: dict[str, str]


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Listening]]:
    """Two daemons: of one every listener, of the other MUTUAL."""
    folder = tmp_path_factory.mktemp("security")
    issuer = certificates(folder / "certificates")
    server, own = issuer.issue("broker", *HOSTS), issuer.issue("alice")
    found: dict[str, Listening] = {}
    with ExitStack() as ends:
        for names, protocols, asked in ((LISTENERS, LISTENERS, "none"), (("MUTUAL",), ("SSL",), "required")):
            more = {"ssl.client.auth": asked}
            settings = daemon_settings(protocols, server=server.together, authority=issuer.authority_file, more=more)
            running = ends.enter_context(daemon(folder / asked, *settings))
            (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
            for name, protocol, address in zip(names, protocols, ready["kafka"].split(","), strict=True):
                told = {"PROTOCOL": protocol}
                told |= {"AUTHORITY": str(issuer.authority_file)} if "SSL" in protocol else {}
                told |= {"CHAIN": str(own.chain), "KEY": str(own.key)} if name == "MUTUAL" else {}
                found[name] = Listening(running, int(address.rsplit(":", 1)[1]), told)
        make_users(found["PLAINTEXT"].port)
        yield found


@pytest.mark.parametrize("name", KAFKA_CLIENTS)
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_client_produces_and_consumes(listeners: dict[str, Listening], name: str, way: tuple[str, str]) -> None:
    """With each codec, beside what ours has produced with it."""
    listener, mechanism = way
    at, topic, codecs = listeners[listener], f"{name}-{listener}-{mechanism}", KAFKA_CLIENTS[name].split()
    given = at.told | {"CODECS": " ".join(codecs), "RECORDS": str(6 * len(codecs))}
    if mechanism:
        secret = {"TOKEN": valid_token()} if mechanism == "OAUTHBEARER" else {"PASSWORD": USERS["alice"]}
        given |= {"MECHANISM": mechanism, "USER": "alice", **secret}
    with seglog.connect(at.daemon.address) as own:
        own.create_topic(topic)
        for codec in codecs:
            with own.producer(topic, compression=codec) as producer:
                for _ in range(3):
                    producer.send(b"v" * 1000, key=b"k")
        found = client_steps(name, f"127.0.0.1:{at.port}", topic, "produce group", **given)
        assert found == {"produce": "", "group": ""}
        with own.consumer(topic) as consumer:
            assert [(record.key, record.value) for record in consumer] == [(b"k", b"v" * 1000)] * 6 * len(codecs)
        (committed,) = own.group_offsets(topic)
        assert committed.offset == 6 * len(codecs)
    (path,) = (at.daemon.directory / f"{topic}-0").glob("*.log")
    batches = [header for header, _ in iter_batches(memoryview(path.read_bytes()))]
    ours, theirs = ({b.codec for b in batches if (b.base_offset < 3 * len(codecs)) == mine} for mine in (True, False))
    assert ours == theirs == {Codec[codec.upper()] for codec in codecs}
