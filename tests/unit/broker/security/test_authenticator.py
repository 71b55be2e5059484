"""The authenticator: what is offered to whom, that nothing sent is more than refused, and equal work for all names."""

import base64
import gc
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import pytest
import trio
from scramp import ScramClient

from seglog_broker.security.authenticator import Authenticator
from seglog_broker.security.credentials import prepared
from seglog_broker.security.oauthbearer import INVALID_TOKEN
from seglog_broker.security.sasl import Exchange, refused
from seglog_protocol.errors import AuthenticationError, UnsupportedMechanismError
from tests.support import each_case, examples
from tests.unit.broker.security.exchanges import (
    NOW_MS,
    authenticator,
    bearer,
    log_in_scram_client,
    plain,
    store,
    unsecured,
)

_FLAGS: Final = (
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "seglog.sasl.oauthbearer.unsecured=true",
)


def test_plain_is_offered_where_nobody_can_listen() -> None:
    accounts = store({})
    usual = authenticator(accounts)
    assert usual.mechanisms(is_private=True) == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    assert usual.mechanisms(is_private=False) == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    forced = authenticator(accounts, "seglog.sasl.plain.cleartext=true")
    assert forced.mechanisms(is_private=False) == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    fewer = authenticator(accounts, "sasl.enabled.mechanisms=SCRAM-SHA-512")
    assert fewer.mechanisms(is_private=True) == ("SCRAM-SHA-512",)


@each_case("mechanism", ["", "GSSAPI", "plain", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "x" * 100_000])
def test_another_mechanism_is_refused_with_those_that_there_are(mechanism: str) -> None:
    with pytest.raises(UnsupportedMechanismError, match="SCRAM-SHA-256, SCRAM-SHA-512") as caught:
        authenticator(store({})).begin(mechanism, is_private=False)
    assert caught.value.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert len(caught.value.message) < 300


def test_plain_without_tls_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedMechanismError, match="PLAIN needs TLS"):
        authenticator(store({})).begin("PLAIN", is_private=False)


def test_an_error_has_nothing_of_what_caused_it() -> None:
    error = refused("PLAIN", "the password is wrong")
    assert error.__context__ is None
    assert "password is wrong" not in error.message
    assert not error.facts


# --- Whatever comes ---------------------------------------------------------------------------------------------------

_RIGHT: Final = "Pa55-of-alice"


async def _scram_tokens(exchange: Exchange, mechanism: str) -> list[bytes]:
    client = ScramClient([mechanism], "alice", _RIGHT)
    first = client.get_client_first().encode()
    client.set_server_first((await exchange.respond(first)).decode())
    return [first, client.get_client_final().encode()]


_PIECES: Final = (b",", b"=", b"\0", b"\x01", b"n,,", b"r=", b"=2C", b"m=x,", b"\xff", b"p=", b"\xc3\xa4", b".")


def _mutated(token: bytes, source: random.Random) -> bytes:
    """``token``, changed in some places."""
    changed = bytearray(token)
    for _ in range(source.randint(1, 4)):
        place = source.randint(0, len(changed))
        cut = source.randint(0, 6)
        changed[place : place + cut] = source.choice(
            [
                b"",
                source.randbytes(3),
                source.choice(_PIECES),
                bytes(changed[: source.randint(0, 40)]),
                base64.b64encode(source.randbytes(cut)),
            ]
        )
        if source.random() < 0.05:
            changed *= source.randint(2, 200)
    return bytes(changed)


async def _torment(broker: Authenticator, mechanism: str, source: random.Random) -> None:
    exchange = broker.begin(mechanism, is_private=True)
    if mechanism.startswith("SCRAM"):
        right = await _scram_tokens(broker.begin(mechanism, is_private=True), mechanism)
        if source.random() < 0.5:  # the second step of an exchange of its own
            right = [(await _scram_tokens(exchange, mechanism))[1]]
    elif mechanism == "PLAIN":
        right = [plain("alice", _RIGHT)]
    else:
        right = [bearer(unsecured({"sub": "alice", "exp": NOW_MS // 1000 + 60})), b"\x01"]
    for token in right:
        sent = _mutated(token, source)
        try:
            answer = await exchange.respond(sent)
        except AuthenticationError as error:
            assert exchange.identity is None or sent != token
            text = f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"
            assert _RIGHT not in text
            assert len(text) < 1000
            return
        if exchange.identity is not None:
            assert exchange.identity.principal == "User:alice" or mechanism == "OAUTHBEARER"
            return
        assert answer == INVALID_TOKEN or answer.startswith(b"r=")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"])
@pytest.mark.soak
async def test_whatever_a_client_sends_is_answered_or_refused(mechanism: str) -> None:
    """Thousands of tokens near right ones: no other error, no secret in any, and nobody gets in by accident."""
    seed = random.randrange(2**32)
    print("seed", seed)
    source = random.Random(seed)
    broker = authenticator(store({"alice": _RIGHT}), *_FLAGS)
    for _ in range(examples(20_000)):
        await _torment(broker, mechanism, source)
        await trio.lowlevel.checkpoint()


# --- No time tells a user that does not exist from a wrong password: the broker makes the same calls for both ---------


DIFFERENT_MAX: Final = 4
"""Calls, of five hundred and more: a look into a dictionary, the text of a reason for the log."""


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Count the calls of functions, Python's own and others, but for those of the garbage collector."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[argument.__qualname__] += 1

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        gc.enable()


async def work_of(mechanism: str, user: str) -> Counter[str]:
    """The calls of a login with a wrong password."""
    exchange = authenticator(store({"alice": "right"})).begin(mechanism, is_private=True)
    calls: Counter[str] = Counter()
    client = None if mechanism == "PLAIN" else log_in_scram_client(mechanism, user, "wrong")
    token = plain(user, "wrong") if client is None else client.get_client_first().encode()
    with counted(calls):
        first = exchange.respond(token)
        if client is None:
            with pytest.raises(AuthenticationError):
                await first
            return calls
        answer = await first
    client.set_server_first(answer.decode())
    token = client.get_client_final().encode()
    with counted(calls), pytest.raises(AuthenticationError):
        await exchange.respond(token)
    return calls


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_an_unknown_user_makes_the_same_work_as_a_wrong_password(mechanism: str) -> None:
    await work_of(mechanism, "alice")  # what is imported and kept at the first time
    known, unknown = await work_of(mechanism, "alice"), await work_of(mechanism, "alicf")
    assert sum(known.values()) > 200
    differing = (known - unknown) + (unknown - known)
    assert not [name for name in differing if "hmac" in name or "digest" in name or "pbkdf2" in name]
    assert sum(differing.values()) <= 2 * DIFFERENT_MAX, differing


# --- Names and passwords as clients write them ------------------------------------------------------------------------


@each_case(
    ("text", "expected"),
    [
        ("alice", "alice"),
        ("\N{ROMAN NUMERAL NINE}", "IX"),
        ("a\N{COMBINING DIAERESIS}", "ä"),
        ("I\N{SOFT HYPHEN}X", "IX"),
        ("\0", "\0"),
        ("", ""),
    ],
)
def test_a_text_is_prepared_where_that_is_possible(text: str, expected: str) -> None:
    assert prepared(text) == expected


def test_a_text_that_would_be_too_long_is_not_looked_at() -> None:
    """Its 6,120 characters would take a hundredth of a second, of every other client."""
    ligature = "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}"
    assert len(prepared(ligature)) == 18
    assert prepared(ligature * 340) == ligature * 340
