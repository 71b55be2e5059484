"""The authenticator: what is offered to whom, and that nothing a client sends is more than refused."""

import base64
import random
from typing import Final

import pytest
import trio
from scramp import ScramClient

from seglog_broker.security.authenticator import Authenticator
from seglog_broker.security.oauthbearer import INVALID_TOKEN
from seglog_broker.security.sasl import Exchange, refused
from seglog_protocol.errors import AuthenticationError, UnsupportedMechanismError
from tests.support import each_case, examples
from tests.unit.broker.security.exchanges import NOW_MS, authenticator, bearer, plain, store, unsecured

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


@pytest.mark.trio
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
