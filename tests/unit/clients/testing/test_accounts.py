"""``seglog.testing.Broker`` with accounts and TLS: who gets in, what stays, and that no password is ever shown."""

import gc
import logging
import pickle
import secrets
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

import seglog
import seglog.trio
from seglog.core.security import Secret
from seglog.testing import AsyncBroker, Broker, NotPossibleError
from seglog.testing.accounts import ADMINISTRATOR, Password
from seglog_protocol.errors import (
    AuthenticationError,
    AuthenticationRequiredError,
    AuthorizationError,
    InvalidConfigError,
    LogDirectoryError,
    TlsError,
    UnknownUserError,
    UserExistsError,
)
from tests.support import each_case

pytestmark = [  # kafka-python's, that were refused
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]

KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param({}, id="on disk"),
        pytest.param({"memory": True}, id="in memory"),
    ],
)
TLS = pytest.mark.parametrize("tls", [pytest.param(False, id="without TLS"), pytest.param(True, id="with TLS")])
SECRET = "of alice, and nobody else's"


@pytest.fixture(autouse=True)
def _without_leftovers(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Close what kafka-python leaves open before another test begins; its log would keep it."""
    caplog.set_level(logging.CRITICAL, "kafka")
    yield
    gc.collect()


@pytest.fixture(scope="module", params=[False, True], ids=["without TLS", "with TLS"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with alice, who administers, and bob."""
    with Broker(memory=True, users={"alice": SECRET, "bob": "b"}, admins=["alice"], tls=request.param) as started:
        yield started


def principal(broker: Broker, login: str, **other: Any) -> str:
    with seglog.connect(**broker.client_config(login) | other) as client:
        return client.principal


def names(broker: Broker) -> list[str]:
    return [user.name for user in broker.client.users()]


# --- Who gets in ------------------------------------------------------------------------------------------------------


@TLS
@KINDS
def test_those_with_an_account_get_in_on_both_wires_and_others_do_not(kind: dict[str, Any], tls: bool) -> None:
    with Broker(**kind, users={"alice": SECRET}, tls=tls) as broker:
        broker.create_topic("t")
        assert broker.server == f"seglog{'s' * tls}://{broker.address}"
        with seglog.connect(broker.server, user="alice", password=SECRET, tls=broker.ca) as client:
            assert client.principal == "User:alice"
            assert client.tls_version.startswith("TLSv1.") == tls
            client.producer("t").send("one").result()
        with closing(KafkaProducer(**broker.kafka_config("alice"))) as producer:
            producer.send("t", b"two").get(60)
        with closing(KafkaConsumer("t", **broker.kafka_config(), auto_offset_reset="earliest")) as consumer:
            assert [next(consumer).value, next(consumer).value] == [b"one", b"two"]
        assert [record.value for record in broker.records("t")] == [b"one", b"two"]
        for wrong in ({"password": "wrong"}, {"user": "nobody"}):
            with pytest.raises(AuthenticationError):
                principal(broker, "alice", **wrong)
        with pytest.raises(AuthenticationRequiredError):
            seglog.connect(broker.server, tls=broker.ca)
        quick = {"bootstrap_timeout_ms": 300}
        with pytest.raises(KafkaError):
            KafkaProducer(**broker.kafka_config("alice") | {"sasl_plain_password": "wrong"} | quick)
        if tls:
            with pytest.raises(TlsError):
                seglog.connect(broker.address, user="alice", password=SECRET)
        assert [line for line in broker.log if line["level"] == "error"] == []


def test_a_broker_with_tls_alone_asks_nobody(tmp_path: Path) -> None:
    with Broker(directory=tmp_path / "d", tls=True) as broker:
        with seglog.connect(broker.server, tls=broker.ca) as client:
            client.create_topic("t")
        with closing(KafkaProducer(**broker.kafka_config())) as producer:
            producer.send("t", b"one").get(60)
        assert len(broker.records("t")) == 1
        with pytest.raises(TlsError):
            seglog.connect(broker.server)
        assert not (tmp_path / "d" / "seglog-accounts.json").exists()


def test_one_without_either_has_no_part_of_them(tmp_path: Path) -> None:
    with Broker(directory=tmp_path / "d") as broker:
        assert (broker.server, broker.ca) == (f"seglog://{broker.address}", None)
        assert broker.client_config() == {"address": broker.server}
        assert broker.kafka_config() == {
            "bootstrap_servers": broker.kafka_address,
            "security_protocol": "PLAINTEXT",
        }
        with seglog.connect(**broker.client_config()) as client:
            assert client.principal == ""
        calls: list[Callable[[str], object]] = [broker.client_config, broker.kafka_config, broker.delete_user]
        calls += [partial(change, password=SECRET) for change in (broker.create_user, broker.set_password)]
        for call in calls:
            with pytest.raises(NotPossibleError, match=r"Broker\(users=\{…\}\)"):
                call("alice")
        assert not (tmp_path / "d" / "seglog-accounts.json").exists()


def test_admins_administer_and_others_do_not(broker: Broker) -> None:
    with seglog.connect(**broker.client_config("alice")) as alice:
        alice.create_topic("of-alice")
    with seglog.connect(**broker.client_config("bob")) as bob:
        with pytest.raises(AuthorizationError):
            bob.delete_topic("of-alice")
        found = bob.create_topic("of-alice", 2, exist_ok=True)
        assert found.warnings == ["of-alice exists with 1 partition, not 2"]
        with pytest.raises(AuthorizationError):
            bob.create_topic("missing", exist_ok=True)
    with Broker(memory=True, users=dict.fromkeys("abc", "x"), admins=["a"], super_users=["User:b", "User:c"]) as both:
        for user in "abc":
            with seglog.connect(**both.client_config(user)) as client:
                client.create_topic(user)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "0.0.0.0"])
def test_the_certificate_is_for_the_host_on_which_it_listens(host: str) -> None:
    with Broker(memory=True, users={}, tls=True, listen=f"{host}:0", kafka=f"{host}:0") as broker:
        broker.produce("t", "one")
        KafkaProducer(**broker.kafka_config()).close()


# --- Accounts while it runs -------------------------------------------------------------------------------------------


@KINDS
def test_accounts_are_made_changed_and_deleted_and_stay_so(kind: dict[str, Any]) -> None:
    assert_changes_stay(kind)


def assert_changes_stay(kind: dict[str, Any]) -> None:
    with Broker(**kind, users={"alice": SECRET, "bob": "b"}) as broker:
        broker.create_user("carol", "c")
        broker.set_password("alice", "another")
        broker.delete_user("bob")
        for end in ("restart", "crash", *["power_cut"] * ("memory" in kind)):
            getattr(broker, end)()
            broker.start()
            assert names(broker) == ["alice", "carol", ADMINISTRATOR]
            assert [principal(broker, user) for user in ("alice", "carol")] == ["User:alice", "User:carol"]
            with pytest.raises(AuthenticationError):
                principal(broker, "alice", password=SECRET)
        with pytest.raises(UnknownUserError, match=r"'bob'.*there are those of: alice, carol$"):
            broker.client_config("bob")
        with pytest.raises(UserExistsError):
            broker.create_user("carol", "d")
        assert principal(broker, "carol") == "User:carol"
        with pytest.raises(UnknownUserError, match="dave"):
            broker.delete_user("dave")
        with pytest.raises(UnknownUserError, match="dave"):
            broker.set_password("dave", "d")


def test_a_directory_keeps_the_accounts_that_it_has(tmp_path: Path) -> None:
    with Broker(directory=tmp_path / "d", users={"alice": SECRET, "bob": "b"}):
        pass
    with Broker(directory=tmp_path / "d", users={"bob": "other", "carol": "c"}) as broker:
        assert names(broker) == ["alice", "bob", "carol", ADMINISTRATOR]
        assert principal(broker, "bob") == "User:bob"
        assert principal(broker, "bob", user="alice", password=SECRET) == "User:alice"
        with pytest.raises(AuthenticationError):
            principal(broker, "bob", password="b")
        with pytest.raises(LogDirectoryError, match="in use"):
            Broker(directory=tmp_path / "d", users={}).start()


# --- Faults -----------------------------------------------------------------------------------------------------------


def test_a_login_fails_when_a_test_asks_for_it(broker: Broker) -> None:
    failing = broker.fail_next("authenticate", AuthenticationError)
    with pytest.raises(AuthenticationError, match="because a test asked for it"):
        principal(broker, "bob")
    assert failing.met == 1
    assert principal(broker, "bob") == "User:bob"


# --- Mistakes ---------------------------------------------------------------------------------------------------------


@each_case(
    ("arguments", "error", "said"),
    [
        ({"users": [("alice", SECRET)]}, TypeError, "users are passwords by their names"),
        ({"users": SECRET}, TypeError, "users are passwords by their names"),
        ({"users": {"alice": None}}, ValueError, "is text"),
        ({"users": {"alice": ""}}, ValueError, "must not be empty"),
        ({"users": {"alice": f"{SECRET}\u00a0"}}, ValueError, "the password of 'alice': SASLprep changes"),
        ({"users": {"\uff41": SECRET}}, ValueError, "cannot name an account: SASLprep"),
        ({"users": {7: SECRET}}, TypeError, "is text, not 7"),
        ({"users": {ADMINISTRATOR: SECRET}}, ValueError, "the broker itself"),
        ({"users": {"alice": SECRET}, "admins": ["bob"]}, ValueError, "'bob', who is not one of users"),
        ({"users": {"alice": SECRET}, "admins": "alice"}, TypeError, r"admins=\['alice'\]"),
        ({"users": {"alice": SECRET}, "log_retention": 1}, TypeError, "no argument 'log_retention'"),
        ({"users": {"alice": SECRET}, "memory": True, "process": True}, TypeError, "neither"),
        ({"users": {"alice": SECRET}, "tls": "yes"}, TypeError, "tls is True or False"),
        ({"users": {"alice": SECRET}, "listen": "SASL_SSL://127.0.0.1:0"}, ValueError, "listen is HOST:PORT"),
        ({"users": {"alice": SECRET}, "kafka": "PLAINTEXT://127.0.0.1:0"}, ValueError, "kafka is HOST:PORT"),
        ({"users": {"alice": SECRET}, "kafka": "nowhere", "tls": True}, InvalidConfigError, "HOST:PORT"),
        ({"users": {"alice": SECRET}, "super_users": "bob"}, InvalidConfigError, "User:NAME"),
        ({"admins": ["alice"]}, TypeError, "there are no users"),
        ({"tls": True, "ssl_keystore_location": "mine.pem"}, TypeError, "ssl.keystore.location another one"),
    ],
)
def test_mistakes_are_told_at_once_and_without_a_password(arguments: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        Broker(**arguments)
    assert SECRET not in shown(caught.value)


# --- Secrets ----------------------------------------------------------------------------------------------------------


def safely(value: object) -> str:
    """Its ``repr``, also of a broker that was refused before it was one."""
    try:
        return repr(value)
    except AttributeError:
        return "half of it"


def shown(error: BaseException) -> str:
    """All that a traceback with the variables of its calls would show, but for those of this module."""
    found = []
    told: BaseException | None = error
    while told is not None:
        found += [repr(told), str(told), repr(vars(told))]
        found += [
            f"{name}={safely(value)}"
            for frame, _ in traceback.walk_tb(told.__traceback__)
            if frame.f_code.co_filename != __file__
            for name, value in frame.f_locals.items()
        ]
        told = told.__cause__ or told.__context__
    return "\n".join(found)


def everything_of(thing: object, depth: int = 6) -> str:
    """``repr`` of a thing, and of what it is made of."""
    inner = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    inner += thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple | set) else []
    texts = [repr(thing)]
    if depth and type(thing).__module__.startswith(("seglog", "builtins")):
        texts += [everything_of(part, depth - 1) for part in inner]
    return "\n".join(texts)


@TLS
def test_no_password_is_in_a_repr_or_a_log(tls: bool) -> None:
    assert_no_password_shown({"memory": True}, tls)


def assert_no_password_shown(kind: dict[str, Any], tls: bool) -> None:
    passwords = [secrets.token_hex(12) for _ in range(4)]
    users: dict[str, Password] = {"alice": passwords[0], "bob": partial(str, passwords[1])}
    with Broker(**kind, users=users, tls=tls, seglog_log_level="debug") as broker:
        broker.create_user("carol", passwords[2])
        broker.set_password("carol", Secret(passwords[3]))
        for user in ("alice", "bob", "carol"):
            for mechanism in ("SCRAM-SHA-512", "PLAIN"):
                assert principal(broker, user, mechanism=mechanism) == f"User:{user}"
            KafkaProducer(**broker.kafka_config(user)).close()
        with suppress(KafkaError):
            KafkaProducer(**broker.kafka_config("alice", "PLAIN") | {"bootstrap_timeout_ms": 100})
        with pytest.raises(AuthenticationError) as caught:
            principal(broker, "alice", user="nobody")
        texts = [
            repr(broker),
            repr(AsyncBroker(broker)),
            everything_of(broker),
            repr([broker.client_config(), broker.client_config("alice")]),
            repr([broker.kafka_config(), broker.kafka_config("alice")]),
            repr(broker.log),
            shown(caught.value),
        ]
        if "process" in kind:
            texts.append(Path(f"/proc/{broker.pid}/cmdline").read_text(encoding="utf-8"))
        own = broker.client_config()["password"].reveal()
        assert broker.kafka_config("alice")["sasl_plain_password"] == passwords[0]
    for text in texts:
        for password in (*passwords, own):
            assert password not in text


def test_settings_for_a_client_of_kafka_go_to_another_process(broker: Broker) -> None:
    """Their password is text like any other to what takes it."""
    config = pickle.loads(pickle.dumps(broker.kafka_config("alice")))
    assert config["sasl_plain_password"] == f"{config['sasl_plain_password']}" == SECRET
    assert SECRET not in repr(config)


# --- From an event loop -----------------------------------------------------------------------------------------------


def test_both_faces_have_the_same_names() -> None:
    broker = Broker(memory=True)
    blocking, awaited = ({name for name in dir(face) if name[0] != "_"} for face in (broker, AsyncBroker(broker)))
    assert awaited == blocking | {"sync"}
