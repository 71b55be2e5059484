"""Accounts of both faces: mechanisms, refusals, sessions that end, and secrets that are shown nowhere."""

import logging
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import seglog
import seglog.trio
from seglog.core.authentication import Authentication
from seglog.core.connection import Reply
from seglog.core.conversations import Ask, converse
from seglog.core.security import Account, Bearer, Secret, Target, target_of
from seglog.core.users import create_user, set_password
from seglog.secret_files import secret_in
from seglog.testing import Broker
from seglog_protocol import kafka, messages
from seglog_protocol.errors import (
    AuthenticationError,
    AuthenticationRequiredError,
    UnacceptableCredentialError,
    UnknownUserError,
    UnsupportedApiError,
    UnsupportedMechanismError,
    UserExistsError,
)
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.clients.faces import Connect
from tests.unit.clients.fake_broker import Answer
from tests.unit.clients.secure_broker import SecureBroker, secure_broker

PASSWORD = "kept-to-itself"
ALICE: dict[str, str] = {"alice": PASSWORD, "a,b=c": PASSWORD, "zoë": PASSWORD}


async def refused(connect: Connect, broker: SecureBroker, said: str, **options: Any) -> AuthenticationError:
    """The error of a client that does not get in, as alice unless ``options`` say otherwise."""
    with pytest.raises(AuthenticationError, match=said) as caught:
        async with connect(broker.address, **{"user": "alice", "password": PASSWORD} | options):
            pass
    return caught.value


async def test_the_best_mechanism_that_the_listener_takes_is_used(connect: Connect) -> None:
    with secure_broker(passwords=ALICE) as broker:
        async with connect(broker.address, user="alice", password=PASSWORD) as client:
            assert client.principal == "User:alice"
            assert [topic.name for topic in await client.topics()] == ["t"]
        broker.mechanisms = ("PLAIN", "SCRAM-SHA-256")
        async with connect(broker.address, user="alice", password=PASSWORD):
            pass
        broker.mechanisms = ("PLAIN",)
        async with connect(broker.address, user="alice", password=PASSWORD):
            pass
    assert [mechanism for _, mechanism in broker.logins] == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]


async def test_a_password_does_not_cross_the_wire_by_scram(connect: Connect) -> None:
    with secure_broker(passwords=ALICE) as broker:
        async with connect(broker.address, user="alice", password=PASSWORD):
            pass
        tokens = [request.token for request in broker.requests if isinstance(request, messages.AuthenticateRequest)]
    assert len(tokens) == 3
    assert not any(PASSWORD.encode() in token for token in tokens)


@each_case("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
@each_case("user", ALICE)
async def test_a_mechanism_may_be_named_and_names_may_be_odd(connect: Connect, mechanism: str, user: str) -> None:
    with secure_broker(passwords=ALICE, mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")) as broker:
        async with connect(broker.address, user=user, password=PASSWORD, mechanism=mechanism) as client:
            assert client.principal == f"User:{user}"
        assert broker.asked(messages.AuthenticateRequest) == (1 if mechanism == "PLAIN" else 2)


async def test_every_connection_of_a_client_is_authenticated_and_asks_for_mechanisms_once(connect: Connect) -> None:
    with secure_broker(passwords=ALICE) as broker:
        async with connect(broker.address, user="alice", password=PASSWORD) as client:
            async with client.producer("t") as producer:
                await producer.send(b"1")
            async with client.consumer("t", start="earliest") as consumer:
                assert [record.value async for record in consumer] == [b"1"]
        asked = [request for request in broker.requests if request == messages.AuthenticateRequest("", b"")]
    assert len(broker.logins) == 3
    assert len(asked) == 1


async def test_a_password_may_come_from_a_file_or_a_function(connect: Connect, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    with secure_broker(passwords=ALICE) as broker:
        async with connect(broker.address, user="alice", password_file=file):
            pass
        async with connect(broker.address, user="alice", password=lambda: PASSWORD):
            pass
        await refused(connect, broker, r"cannot be had: .*nowhere", password=None, password_file=tmp_path / "nowhere")
        with pytest.raises(ValueError, match="exclude each other"):
            connect_now(connect, broker.address, user="alice", password=PASSWORD, password_file=file)
    assert len(broker.logins) == 2


async def test_a_token_is_asked_for_each_time(connect: Connect) -> None:
    asked: list[str] = []

    def token() -> str:
        asked.append("")
        return "a-token"

    with secure_broker(passwords={}, mechanisms=("OAUTHBEARER",)) as broker:
        async with connect(broker.address, token=token) as client:
            assert client.principal == "User:bearer"
            await client.ping()
        with pytest.raises(AuthenticationError, match="a token"):
            async with connect(broker.address, token="another-token"):
                pass
    assert len(asked) == 2


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
async def test_a_refusal_is_final_and_says_who_and_how(connect: Connect, user: str, password: str) -> None:
    with secure_broker(passwords=ALICE) as broker:
        await refused(connect, broker, f"'{user}', by SCRAM-SHA-512", user=user, password=password, connect_timeout=60)
        assert not broker.asked(messages.HelloRequest)
        assert sum(request == messages.AuthenticateRequest("", b"") for request in broker.requests) == 1


@pytest.mark.parametrize(
    ("user", "password", "what"),
    [("alice", f"{PASSWORD}\u0378", "password"), ("al\u0378", PASSWORD, "name of the user")],
)
async def test_what_saslprep_forbids_is_said_in_a_sentence(
    connect: Connect, user: str, password: str, what: str
) -> None:
    with secure_broker(passwords=ALICE) as broker:
        with pytest.raises(AuthenticationError, match=f"the {what} has characters that SASLprep") as caught:
            async with connect(broker.address, user=user, password=password):
                pass
        assert "\u0378" not in caught.value.message
        assert_hidden(shown(caught.value))


async def test_without_an_account_the_listener_is_heard(connect: Connect) -> None:
    with secure_broker(passwords=ALICE) as broker, pytest.raises(AuthenticationRequiredError) as caught:
        async with connect(broker.address):
            pass
    assert caught.value.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]


KNOWS_NO_ACCOUNTS = UnsupportedApiError("there is no api authenticate")
HAS_NO_EXCHANGE = AuthenticationRequiredError("received after successful authentication")


@each_case(
    ("answer", "mechanism"),
    [
        *((None, mechanism) for mechanism in (None, "SCRAM-SHA-256", "PLAIN")),
        (KNOWS_NO_ACCOUNTS, None),
        *((HAS_NO_EXCHANGE, mechanism) for mechanism in (None, "SCRAM-SHA-512")),
    ],
)
async def test_a_listener_without_accounts_is_not_talked_to_in_secret(
    connect: Connect, answer: Answer | None, mechanism: Any
) -> None:
    with secure_broker() as broker:
        broker.script = lambda request, _: answer if isinstance(request, messages.AuthenticateRequest) else None
        await refused(connect, broker, "connect without a user", mechanism=mechanism)


async def test_a_mechanism_that_the_listener_does_not_take_is_refused_with_those_it_does(connect: Connect) -> None:
    with secure_broker(passwords=ALICE, mechanisms=("SCRAM-SHA-256",)) as broker:
        with pytest.raises(UnsupportedMechanismError, match="but SCRAM-SHA-256") as caught:
            async with connect(broker.address, user="alice", password=PASSWORD, mechanism="SCRAM-SHA-512"):
                pass
        assert caught.value.mechanisms == ["SCRAM-SHA-256"]
        broker.mechanisms = ("OAUTHBEARER",)
        await refused(connect, broker, "takes OAUTHBEARER there, and no password")


async def test_a_broker_that_does_not_know_the_account_itself_is_found_out(connect: Connect) -> None:
    with secure_broker(passwords=ALICE) as broker:

        def forged(request: messages.Request, _payload: memoryview) -> Answer | None:
            is_last = isinstance(request, messages.AuthenticateRequest) and request.token.startswith(b"c=")
            return messages.AuthenticateReply(b"v=" + b"A" * 86 + b"==", True, "User:alice") if is_last else None

        broker.script = forged
        await refused(connect, broker, "signature")
        assert not broker.asked(messages.HelloRequest)


async def test_a_session_is_renewed_on_its_connection_before_the_next_request(connect: Connect) -> None:
    with secure_broker(passwords=ALICE, session_ms=1) as broker:
        async with connect(broker.address, user="alice", password=PASSWORD) as client:
            for _ in range(3):
                assert [topic.name for topic in await client.topics()] == ["t"]
        assert broker.asked(messages.HelloRequest) == 1
    assert len(broker.logins) == 4 + 1  # hello comes behind a renewal, too, of a session as short as that


async def test_a_long_session_is_not_renewed(connect: Connect) -> None:
    with secure_broker(passwords=ALICE, session_ms=3_600_000) as broker:
        async with connect(broker.address, user="alice", password=PASSWORD) as client:
            for _ in range(3):
                await client.topics()
    assert len(broker.logins) == 1


async def test_a_deleted_account_ends_with_its_session(connect: Connect) -> None:
    passwords = dict(ALICE)
    with secure_broker(passwords=passwords, session_ms=1) as broker:
        async with connect(broker.address, user="alice", password=PASSWORD) as client:
            del passwords["alice"]
            for _ in range(2):  # also by another connection
                with pytest.raises(AuthenticationError, match="alice"):
                    await client.topics()


async def test_a_producer_whose_account_is_deleted_ends_with_the_refusal(connect: Connect) -> None:
    passwords = dict(ALICE)
    with secure_broker(passwords=passwords) as broker, trio.fail_after(60):
        async with connect(broker.address, user="alice", password=PASSWORD) as client:
            producer = await client.producer("t", delivery_timeout=600)
            await (await producer.send(b"1"))
            del passwords["alice"]
            broker.drop_connections()
            delivery = await producer.send(b"2")
            with pytest.raises(AuthenticationError, match="'alice', by SCRAM-SHA-512"):
                await delivery
            with pytest.raises(AuthenticationError, match="'alice'"):
                await producer.send(b"3")
            await producer.close()
            assert broker.values() == [b"1"]


@pytest.mark.parametrize("kind", [messages.TopicsRequest, messages.AppendRequest])
async def test_a_request_that_came_behind_the_end_of_a_session_is_sent_by_another_connection(
    connect: Connect, kind: type[messages.Request]
) -> None:
    with secure_broker(passwords=ALICE, session_ms=3_600_000) as broker:
        refused: list[messages.Request] = []

        def once(request: messages.Request, _payload: memoryview) -> Answer | None:
            if isinstance(request, kind) and not refused:
                refused.append(request)
                return AuthenticationRequiredError("the session has ended", mechanisms=["SCRAM-SHA-256"])
            return None

        broker.script = once
        async with connect(broker.address, user="alice", password=PASSWORD) as client:
            assert [topic.name for topic in await client.topics()] == ["t"]
            async with client.producer("t") as producer:
                await producer.send(b"1")
        assert refused
        assert broker.values() == [b"1"]


# --- Settings ---------------------------------------------------------------------------------------------------------


@each_case(
    ("options", "said"),
    [
        ({"user": "alice"}, "no password for user 'alice'"),
        ({"password": PASSWORD}, "a password without a user"),
        ({"user": "", "password": PASSWORD}, "has no name"),
        ({"user": "a\0b", "password": PASSWORD}, "NUL"),
        ({"user": "alice", "password": ""}, "must not be empty"),
        ({"user": "alice", "password": PASSWORD.encode()}, "is text"),
        ({"user": "alice", "password": PASSWORD, "mechanism": "GSSAPI"}, "no mechanism 'GSSAPI'"),
        ({"user": "alice", "password": PASSWORD, "mechanism": "OAUTHBEARER"}, "needs a token"),
        ({"user": "alice", "password": PASSWORD, "token": "t"}, "leave out user and password"),
        ({"token": "t", "mechanism": "PLAIN"}, "a token is for OAUTHBEARER"),
        ({"mechanism": "PLAIN"}, "needs a user and a password"),
        ({"address": "http://localhost:1"}, "another kind of URL"),
        ({"address": "seglogs://localhost:1", "tls": False}, "write seglog://"),
        ({"address": "seglog://localhost:1", "tls": True}, "write seglogs://"),
        ({"address": "seglogs://"}, "not an address"),
    ],
)
@each_case("connect", [seglog.connect, seglog.trio.connect])
def test_settings_that_do_not_fit_together_are_refused(
    connect: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        connect(**{"address": "localhost:1"} | options)
    assert_hidden(shown(caught.value))


@each_case("address", ["seglogs://{}@localhost:1", "{}@localhost:1", "https://{}@localhost:1/"])
@each_case("connect", [seglog.connect, seglog.trio.connect])
def test_an_account_in_the_address_is_refused_and_not_shown(connect: Callable[..., Any], address: str) -> None:
    with pytest.raises(ValueError, match=r"user= and password_file= \(--user, --password-file\)") as caught:
        connect(address.format(f"alice:{PASSWORD}"))
    assert_hidden("".join(traceback.format_exception(caught.value)))


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    for options, kind, said in (
        ({"tls": tmp_path / "nowhere"}, FileNotFoundError, "nowhere"),
        ({"tls": junk}, ValueError, "junk.pem holds no certificates in PEM"),
        ({"tls": seglog.Tls(certificate=junk)}, ValueError, "junk.pem"),
        ({"tls": seglog.Tls(certificate=tmp_path / "nowhere")}, FileNotFoundError, "nowhere"),
    ):
        with pytest.raises(kind, match=said):
            seglog.connect("localhost:1", **options)
    with pytest.raises(ValueError, match="a key is for a certificate"):
        seglog.Tls(key="key.pem")
    with pytest.raises(ValueError, match="the password of a key"):
        seglog.Tls(key_password=PASSWORD)


@each_case(
    ("host", "is_private"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("example.com", False),
    ],
)
def test_a_password_is_sent_as_it_is_over_tls_and_to_this_machine_alone(host: str, is_private: bool) -> None:
    assert target_of(f"{host}:9192").is_private is is_private
    assert target_of(f"seglogs://{host}:9192").is_private
    assert target_of(f"{host}:9192", tls="ca.pem").is_private


@pytest.mark.parametrize("mechanism", [None, "PLAIN"])
def test_plain_is_refused_elsewhere(mechanism: str | None) -> None:
    target = target_of("broker.example:9192", user="alice", password=Secret(PASSWORD), mechanism=mechanism)

    def refuse(_: object) -> object:
        raise UnsupportedMechanismError("choose", mechanisms=["PLAIN"])

    with pytest.raises(AuthenticationError, match="for all to read"):
        converse(Authentication(target).exchange(), refuse)


# --- Secrets ----------------------------------------------------------------------------------------------------------


def shown(error: BaseException) -> str:
    """The error with all that hangs on it, and the variables of every frame of ours."""
    kept = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    return "\n".join(part for part in kept.split('  File "') if "/tests/" not in part.partition('"')[0])


def assert_hidden(text: str) -> None:
    assert text
    assert PASSWORD not in text


def test_settings_do_not_show_their_secrets() -> None:
    secret = Secret(PASSWORD)
    settings = [
        secret,
        Account("alice", secret),
        Bearer(secret),
        seglog.Tls(certificate="a.pem", key_password=PASSWORD),
        target_of("localhost:1", user="alice", password=secret, tls=True),
    ]
    for setting in settings:
        assert_hidden(f"{setting!r} {setting}")
        assert not hasattr(setting, "__dict__")
        again = pickle.loads(pickle.dumps(setting))
        assert type(again) is type(setting)
    again = pickle.loads(pickle.dumps(settings[-1]))
    assert isinstance(again, Target)
    assert isinstance(again.identity, Account)
    assert again.identity.password.reveal() == PASSWORD


def test_a_file_of_a_password_is_one_line_of_text_and_shown_in_no_error(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content in (PASSWORD, f"{PASSWORD}\n", f"{PASSWORD}\r\n"):
        file.write_text(content)
        assert secret_in(file).reveal() == PASSWORD
    secret = pickle.loads(pickle.dumps(secret_in(file)))
    assert secret.reveal() == PASSWORD
    for wrong, why in (
        (f"{PASSWORD}\n{PASSWORD}\n", "has several lines"),
        ("", "is empty"),
        ("\n", "is empty"),
        (PASSWORD * 10_000, "has more than 65,536 bytes"),
    ):
        file.write_text(wrong)
        with pytest.raises(ValueError, match=f"password {why}: it must hold a password") as caught:
            secret_in(file).reveal()
        assert_hidden(shown(caught.value))
    file.write_bytes(PASSWORD.encode() + b"\xff")
    with pytest.raises(ValueError, match="is not UTF-8") as caught:
        secret_in(file).reveal()
    assert_hidden(shown(caught.value))


def test_a_password_from_a_pipe_is_kept_for_the_next_connection() -> None:
    reader, writer = os.pipe()
    os.write(writer, f"{PASSWORD}\n".encode())
    os.close(writer)
    secret = secret_in(f"/dev/fd/{reader}")
    assert [secret.reveal(), secret.reveal()] == [PASSWORD, PASSWORD]
    os.close(reader)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_no_error_and_no_line_of_the_log_shows_a_password(
    connect: Connect, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        secure_broker(passwords={"alice": "another"}, mechanisms=(mechanism,)) as broker,
        pytest.raises(AuthenticationError) as caught,
    ):
        async with connect(broker.address, user="alice", password=PASSWORD):
            pass
    assert_hidden(shown(caught.value))
    assert_hidden(f"log: {caplog.text}")


def connect_now(connect: Connect, address: str, **options: Any) -> None:
    """Call it without its block; the face that needs one says what is wrong before."""
    made = seglog.trio.connect if connect is seglog.trio.connect else seglog.connect
    made(address, **options)


# --- Accounts that are administered: a password stays here, what is derived from it logs in ---------------------------


async def test_an_account_is_made_logs_in_and_is_deleted(connect: Connect) -> None:
    with Broker(memory=True, users={"admin": PASSWORD}, admins=["admin"]) as broker:
        async with connect(broker.server, user="admin", password=PASSWORD) as admin:
            await admin.create_user("alice", "of alice")
            (alice,) = await admin.users(["alice"])
            assert [(each.mechanism, each.iterations) for each in alice.credentials] == [
                ("SCRAM-SHA-256", 8192),
                ("SCRAM-SHA-512", 8192),
            ]
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                async with connect(broker.server, user="alice", password="of alice", mechanism=mechanism) as client:
                    assert client.principal == "User:alice"
            await admin.set_password("alice", lambda: "another", iterations=4096)
            assert {each.iterations for each in (await admin.users(["alice"]))[0].credentials} == {4096}
            with pytest.raises(AuthenticationError):
                async with connect(broker.server, user="alice", password="of alice"):
                    pass
            with pytest.raises(UserExistsError, match="'alice' already"):
                await admin.create_user("alice", PASSWORD)
            with pytest.raises(UnacceptableCredentialError):
                await admin.create_user("carol", PASSWORD, iterations=4095)
            await admin.delete_user("alice")
            for call, *arguments in (
                (admin.set_password, "alice", PASSWORD),
                (admin.delete_user, "alice"),
                (admin.users, ["alice"]),
            ):
                with pytest.raises(UnknownUserError, match="alice"):
                    await call(*arguments)


def test_of_a_password_nothing_is_sent_but_what_is_derived_from_it_with_new_salts() -> None:
    asked: list[Any] = []

    def answer(question: Ask) -> Reply:
        """There is no account, and it is made."""
        payload = memoryview(question.payload[0])
        assert PASSWORD.encode() not in bytes(payload)
        asked.append(kafka.read_request(kafka.read_request_header(payload), payload))
        cls = kafka.messages.DescribeUserScramCredentialsResponse
        unknown = cls.DescribeUserScramCredentialsResult(user="alice", error_code=ErrorCode.RESOURCE_NOT_FOUND)
        made = kafka.messages.AlterUserScramCredentialsResponse()
        response = cls(results=[unknown]) if len(asked) % 2 else made
        return Reply(1, {"id": 1}, memoryview(b"".join(kafka.write_response(0, response, 0)))[4:])

    for _ in range(2):
        converse(create_user("alice", Secret(PASSWORD), 4096), answer)
    credentials = [*asked[1].upsertions, *asked[3].upsertions]
    assert sorted(each.mechanism for each in credentials) == [1, 1, 2, 2]
    assert [len(salt) for salt in {bytes(each.salt) for each in credentials}] == [32] * 4


@each_case(
    ("name", "password", "said"),
    [
        ("", PASSWORD, "cannot name an account"),
        ("a\u00adb", PASSWORD, "cannot name an account"),
        ("\uff41", PASSWORD, "cannot name an account"),
        ("a\x07", PASSWORD, "cannot name an account"),
        ("alice", "", "must not be empty"),
        ("alice", f"{PASSWORD}\u2168", "this password cannot be used"),
        ("alice", f"{PASSWORD}\x00", "this password cannot be used"),
        ("alice", f"{PASSWORD}\u00a0", "this password cannot be used"),
        ("alice", f"e\u0301{PASSWORD}", "this password cannot be used"),
        ("alice", PASSWORD.ljust(1025, "x"), "more than 1,024 bytes"),
    ],
)
def test_what_clients_would_send_in_different_ways_is_refused_here(name: str, password: str, said: str) -> None:
    for call in (create_user, set_password):
        with pytest.raises(ValueError, match=said) as caught:
            next(call(name, Secret(password), 4096))
        assert PASSWORD not in str(caught.value)
