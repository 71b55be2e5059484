"""SCRAM: who knows the password is let in, and nobody else learns anything."""

import base64
import hashlib
import hmac
import itertools
from contextlib import suppress

import pytest
from scramp.core import Nonce

from seglog_broker.security.credentials import from_salted
from seglog_broker.security.sasl import Exchange, Identity
from seglog_broker.storage.directory.accounts import SALT_BYTES_MAX, Change
from seglog_protocol.errors import AuthenticationError
from seglog_protocol.scram import HASHES, salted
from tests.support import each_case
from tests.unit.broker.security.exchanges import (
    authenticator,
    changes_for,
    empty_store,
    log_in_scram,
    log_in_scram_client,
    made_of,
    put,
    store,
)


async def reason_of(exchange: Exchange, *tokens: bytes) -> str:
    """Why the last of ``tokens`` is refused, as the log says it."""
    for token in tokens[:-1]:
        await exchange.respond(token)
    with pytest.raises(AuthenticationError) as caught:
        await exchange.respond(tokens[-1])
    assert exchange.identity is None
    assert caught.value.message.startswith("Authentication failed")
    return str(caught.value.__cause__)


async def test_the_example_of_rfc_7677_is_answered_byte_for_byte() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    mechanism = "SCRAM-SHA-256"
    accounts = empty_store()
    credential = from_salted(mechanism, 4096, salt, salted(mechanism, b"pencil", salt, 4096))
    put(accounts, Change("user", mechanism, credential))
    exchange = authenticator(accounts).begin(mechanism, is_private=False)
    exchange._server.s_nonce = Nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")  # type: ignore[attr-defined]
    assert await exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert exchange.identity is None
    assert await exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert exchange.identity == Identity("User:user")


@pytest.mark.parametrize("size", [0, 1, 11, SALT_BYTES_MAX])
async def test_a_salt_has_any_length_that_kafka_keeps(size: int) -> None:
    """The client's half is computed here, because scramp's wants twelve bytes."""
    salt, mechanism = b"s" * size, "SCRAM-SHA-256"
    proven = salted(mechanism, b"pencil", salt, 4096)
    accounts = empty_store()
    put(accounts, Change("user", mechanism, from_salted(mechanism, 4096, salt, proven)))
    exchange = authenticator(accounts).begin(mechanism, is_private=False)
    told = await exchange.respond(b"n,,n=user,r=nonce")
    nonce, its_salt, _ = told.split(b",")
    assert its_salt == b"s=" + base64.b64encode(salt)
    key = hmac.digest(proven, b"Client Key", "sha256")
    message = b",".join([b"n=user,r=nonce", told, b"c=biws", nonce])
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
    await exchange.respond(b"c=biws," + nonce + b",p=" + base64.b64encode(proof))
    assert exchange.identity == Identity("User:user")


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "Jürgen Müller", "=2C=3D", "日本"])
async def test_another_implementation_logs_in_and_knows_the_broker(mechanism: str, name: str) -> None:
    exchange = authenticator(store({name: "pässword, with = and ,"})).begin(mechanism, is_private=False)
    await log_in_scram(exchange, name, "pässword, with = and ,")
    assert exchange.identity == Identity(f"User:{name}")
    assert exchange.claimed == name


async def test_an_unknown_user_and_a_wrong_password_get_the_same_answers() -> None:
    broker = authenticator(store({"alice": "right"}))
    answers = []
    for name, why in (("alice", "the password is wrong"), ("nobody", "the user does not exist")):
        exchange = broker.begin("SCRAM-SHA-256", is_private=False)
        with pytest.raises(AuthenticationError) as caught:
            await log_in_scram(exchange, name, "guessed")
        answers.append((caught.value.message, caught.value.facts, caught.value.code, exchange.identity))
        assert str(caught.value.__cause__) == why, "in the log alone"
    assert answers[0] == answers[1]


def _first(name: str) -> bytes:
    return f"n,,n={name},r=nonce".encode()


async def test_an_unknown_user_has_the_same_salt_and_iterations_each_time_also_after_a_restart() -> None:
    accounts = store({"alice": "right"})
    seen = set()
    for _ in range(3):
        exchange = authenticator(accounts).begin("SCRAM-SHA-512", is_private=False)
        seen.add((await exchange.respond(_first("nobody"))).split(b",", 1)[1])
        again = empty_store(accounts._fs)  # type: ignore[arg-type]
        again.load()
        accounts = again
    assert len(seen) == 1
    other = authenticator(accounts).begin("SCRAM-SHA-512", is_private=False)
    assert (await other.respond(_first("nobody2"))).split(b",", 1)[1] not in seen


async def test_unknown_users_look_like_the_accounts_that_there_are() -> None:
    """As often as accounts have a shape, names without an account do, so that no shape tells them apart."""
    accounts = empty_store()
    kinds = [(b"\x80" * 32, 8192)] * 60 + [(b"abcdefghijklmnopqrstuvwxyz", 4096)] * 40
    changes = [
        Change(f"u{n}", mechanism, made_of(mechanism, salt, iterations))
        for n, (salt, iterations) in enumerate(kinds)
        for mechanism in HASHES
    ]
    put(accounts, *changes)
    broker = authenticator(accounts)
    counted = {"8192": 0, "4096": 0}
    for number in range(400):
        exchange = broker.begin("SCRAM-SHA-256", is_private=False)
        answer = (await exchange.respond(_first(f"nobody{number}"))).decode()
        parts = dict(part.split("=", 1) for part in answer.split(","))
        salt = base64.b64decode(parts["s"])
        assert len(salt) == (32 if parts["i"] == "8192" else 26)
        assert salt.isalnum() == (parts["i"] == "4096")
        counted[parts["i"]] += 1
    assert 180 < counted["8192"] < 300


async def test_a_client_may_name_itself_as_the_one_it_acts_as_and_no_other() -> None:
    broker = authenticator(store({"a,b": "right"}))
    exchange = broker.begin("SCRAM-SHA-256", is_private=False)
    client = log_in_scram_client("SCRAM-SHA-256", "a,b", "right")
    first = client.get_client_first().replace("n,,", "n,a=a=2Cb,")
    client.set_server_first((await exchange.respond(first.encode())).decode())
    client.gs2_header = _Header()
    client.set_server_final((await exchange.respond(client.get_client_final().encode())).decode())
    assert exchange.identity == Identity("User:a,b")
    other = broker.begin("SCRAM-SHA-256", is_private=False)
    assert await reason_of(other, b"n,a=admin,n=a=2Cb,r=x") == "it asks to act as another user"


class _Header:
    def make_cbind_input(self, _: object) -> bytes:
        return b"n,a=a=2Cb,"


async def test_a_client_that_would_have_bound_the_channel_is_let_in() -> None:
    exchange = authenticator(store({"alice": "right"})).begin("SCRAM-SHA-256", is_private=True)
    client = log_in_scram_client("SCRAM-SHA-256", "alice", "right", channel_binding=("tls-unique", b"x"))
    first = client.get_client_first()
    assert first.startswith("y,,")
    client.set_server_first((await exchange.respond(first.encode())).decode())
    client.set_server_final((await exchange.respond(client.get_client_final().encode())).decode())
    assert exchange.identity is not None


@each_case(
    ("token", "why"),
    [
        (b"", "malformed"),
        (b"n,,", "Malformed"),
        (b"\xff\xfe", "not UTF-8"),
        (b"p=tls-unique,,n=alice,r=x", "channel-binding-not-supported"),
        (b"p=tls-exporter,,n=alice,r=x", "channel-binding"),
        (b"x,,n=alice,r=x", "GS2 flag"),
        (b"n,,m=ext,n=alice,r=x", "extensions-not-supported"),
        (b"n,,n=alice,r=x,tokenauth=true", "Malformed"),
        (b"n,,n=alice", "Malformed"),
        (b"n,,r=x,n=alice", "Malformed"),
        (b"n,,n=alice,r=", "Malformed"),
        (b"n,,n=,r=x", "Malformed"),
        (b"n,,n=a=4D,r=x", "must be followed by"),
        (b"n,,n=alice,r=x,r=y", "Duplicate"),
        (b"n,,n=al\0ice,r=x", "zero character"),
        (b"n,,n=" + b"a" * 300 + b",r=x", "300 characters"),
        (b"n,,n=a,r=" + b"x" * 5000, "4096 bytes"),
    ],
)
async def test_a_first_message_that_is_not_as_it_should_be_is_refused(token: bytes, why: str) -> None:
    exchange = authenticator(store({"alice": "right"})).begin("SCRAM-SHA-256", is_private=False)
    assert why in await reason_of(exchange, token)
    assert await reason_of(exchange, b"n,,n=alice,r=x") == "the exchange has ended"


async def test_messages_that_are_replayed_or_reordered_are_refused() -> None:
    broker = authenticator(store({"alice": "right"}))
    client = log_in_scram_client("SCRAM-SHA-256", "alice", "right")
    first = client.get_client_first().encode()
    exchange = broker.begin("SCRAM-SHA-256", is_private=False)
    client.set_server_first((await exchange.respond(first)).decode())
    final = client.get_client_final().encode()
    assert await exchange.respond(final)
    with pytest.raises(AuthenticationError):
        await exchange.respond(final)
    assert "nonce" in await reason_of(broker.begin("SCRAM-SHA-256", is_private=False), first, final)
    for one, two in itertools.product((first, final), repeat=2):
        again = broker.begin("SCRAM-SHA-256", is_private=False)
        with suppress(AuthenticationError):
            await again.respond(one)
        with pytest.raises(AuthenticationError):
            await again.respond(two)
        assert again.identity is None


async def test_a_nonce_or_a_binding_that_differs_is_refused() -> None:
    broker = authenticator(store({"alice": "right"}))
    for old, new, why in (("r=", "r=x", "nonce"), ("c=biws", "c=eSws", "channel-bindings-dont-match")):
        client = log_in_scram_client("SCRAM-SHA-256", "alice", "right")
        exchange = broker.begin("SCRAM-SHA-256", is_private=False)
        client.set_server_first((await exchange.respond(client.get_client_first().encode())).decode())
        assert why in await reason_of(exchange, client.get_client_final().replace(old, new, 1).encode())


@pytest.mark.parametrize("change", [[Change("alice", each, None) for each in HASHES], changes_for("alice", "other")])
async def test_an_account_that_is_changed_or_deleted_during_an_exchange_is_not_let_in(change: list[Change]) -> None:
    accounts = store({"alice": "right"})
    exchange = authenticator(accounts).begin("SCRAM-SHA-256", is_private=False)
    client = log_in_scram_client("SCRAM-SHA-256", "alice", "right")
    client.set_server_first((await exchange.respond(client.get_client_first().encode())).decode())
    put(accounts, *change)
    assert "meanwhile" in await reason_of(exchange, client.get_client_final().encode())


async def test_a_name_that_a_client_has_not_prepared_finds_the_account() -> None:
    exchange = authenticator(store({"IX": "right"})).begin("SCRAM-SHA-256", is_private=False)
    client = log_in_scram_client("SCRAM-SHA-256", "IX", "right")
    first = client.get_client_first().replace("n=IX", "n=\u2168")
    client.client_first_bare = first.removeprefix("n,,")
    client.set_server_first((await exchange.respond(first.encode())).decode())
    client.set_server_final((await exchange.respond(client.get_client_final().encode())).decode())
    assert exchange.identity == Identity("User:IX")
