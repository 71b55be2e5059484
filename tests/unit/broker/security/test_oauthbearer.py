"""OAUTHBEARER: only a token that the provider signed, for this broker and for now, is a proof."""

import hmac
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
import trio
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from trio.testing import MockClock

from seglog_broker.config import load_config
from seglog_broker.security import oauthbearer
from seglog_broker.security.authenticator import Authenticator
from seglog_broker.security.oauthbearer import INVALID_TOKEN, TOKEN_BYTES_MAX, Jwks, parse_keys, read_url
from seglog_broker.security.sasl import Identity
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.errors import AuthenticationError, InvalidConfigError
from tests.logs import ManualClock
from tests.support import each_case
from tests.unit.broker.security.exchanges import NOW_MS, authenticator, base64url, bearer, empty_store, unsecured

NOW: Final = NOW_MS // 1000
GOOD: Final = {"sub": "alice", "exp": NOW + 600, "iat": NOW - 1, "iss": "https://provider", "aud": "seglog"}

RSA_KEY: Final = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY: Final = rsa.generate_private_key(65537, 2048)
EC_KEY: Final = ec.generate_private_key(ec.SECP256R1())
ED_KEY: Final = ed25519.Ed25519PrivateKey.generate()
KEYS: Final[Mapping[str, Any]] = {"rsa": RSA_KEY, "ec": EC_KEY, "ed": ED_KEY}


def public_keys() -> list[dict[str, Any]]:
    return [
        {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "rsa"},
        {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "ec"},
        {**OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True), "kid": "ed"},
    ]


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys or public_keys()}).encode()


def signed(claims: Mapping[str, Any], kid: str | None = "rsa", algorithm: str = "RS256", key: Any = None) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(dict(claims), key or KEYS[kid or "rsa"], algorithm=algorithm, headers=headers)


def broker_with(tmp_path: Path, *flags: str) -> Authenticator:
    file = tmp_path / "oauthbearer.json"
    if not file.exists():
        file.write_bytes(key_set())
    return authenticator(
        empty_store(),
        "sasl.enabled.mechanisms=OAUTHBEARER",
        f"sasl.oauthbearer.jwks.endpoint.url=file://{file}",
        "sasl.oauthbearer.expected.audience=other,seglog",
        "sasl.oauthbearer.expected.issuer=https://provider",
        *flags,
    )


def unsecured_broker(*flags: str) -> Authenticator:
    """One that takes tokens without a signature."""
    unsecured = ("sasl.enabled.mechanisms=OAUTHBEARER", "seglog.sasl.oauthbearer.unsecured=true")
    return authenticator(empty_store(), *unsecured, *flags)


async def outcome(broker: Authenticator, token: str, **more: str) -> Identity | str:
    """Who the client is, or why its token is refused, as the log says it."""
    exchange = broker.begin("OAUTHBEARER", is_private=True)
    refusal: AuthenticationError | None = None
    try:
        answer = await exchange.respond(bearer(token, **more))
        if exchange.identity is not None:
            assert answer == b""
            return exchange.identity
        assert answer == INVALID_TOKEN
        await exchange.respond(b"\x01")
    except AuthenticationError as error:
        refusal = error
    assert refusal is not None
    assert exchange.identity is None
    assert token not in repr(refusal) + repr(refusal.__cause__)
    return str(refusal.__cause__)


@pytest.mark.parametrize(
    ("kid", "algorithm"),
    [("rsa", "RS256"), ("rsa", "RS512"), ("rsa", "PS384"), ("ec", "ES256"), ("ed", "EdDSA"), (None, "RS256")],
)
async def test_a_signed_token_is_a_proof_until_it_expires(tmp_path: Path, kid: str | None, algorithm: str) -> None:
    found = await outcome(broker_with(tmp_path), signed(GOOD, kid, algorithm))
    assert found == Identity("User:alice", (NOW + 600) * 1000)


async def test_a_token_may_name_whom_it_acts_as_and_carry_what_kafkas_clients_add(tmp_path: Path) -> None:
    broker = broker_with(tmp_path)
    for more in ({"acting_as": "a=alice"}, {"more": "traceId=123\x01logicalCluster=lkc-1\x01"}):
        assert isinstance(await outcome(broker, signed(GOOD), **more), Identity)
    assert await outcome(broker, signed(GOOD), acting_as="a=bob") == "it asks to act as another user"


@each_case(
    ("change", "why"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"exp": None}, "no exp"),
        ({"exp": "soon"}, "no number"),
        ({"exp": True}, "no number"),
        ({"exp": 1e300}, "no number"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"iss": "https://other"}, "InvalidIssuerError"),
        ({"iss": None}, "InvalidIssuerError"),
        ({"aud": "third"}, "InvalidAudienceError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"sub": ""}, "names no account"),
        ({"sub": "  "}, "names no account"),
        ({"sub": 7}, "InvalidSubjectError"),
        ({"sub": "a" * 256}, "names no account"),
        ({"sub": "a\0b"}, "names no account"),
        ({"scope": 7}, "scope is neither"),
    ],
)
async def test_a_token_that_says_something_else_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    assert why in str(await outcome(broker_with(tmp_path), raw_signed({**GOOD, **change})))


def raw_signed(claims: Mapping[str, Any]) -> str:
    """A token with a good signature over any claims, also those that the library would not sign."""
    header = json.dumps({"alg": "RS256", "kid": "rsa"}).encode()
    content = f"{base64url(header)}.{base64url(json.dumps(claims).encode())}"
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(content.encode(), RSA_KEY)
    return f"{content}.{base64url(signature)}"


async def test_clocks_may_differ_and_an_audience_be_one_of_several(tmp_path: Path) -> None:
    broker = broker_with(tmp_path)
    late = {**GOOD, "exp": NOW - 29, "iat": NOW + 29, "nbf": NOW + 29, "aud": ["x", "seglog"], "scope": ["a", "b"]}
    assert isinstance(await outcome(broker, signed(late)), Identity)


async def test_another_claim_may_name_the_account(tmp_path: Path) -> None:
    broker = broker_with(tmp_path, "sasl.oauthbearer.sub.claim.name=preferred_username")
    found = await outcome(broker, signed({**GOOD, "preferred_username": "bob"}))
    assert found == Identity("User:bob", (NOW + 600) * 1000)


async def test_a_token_that_anyone_could_have_made_is_refused(tmp_path: Path) -> None:
    """No algorithm, the public key taken for a password, a key of someone else's, an algorithm of another key's."""
    broker = broker_with(tmp_path)
    pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = json.dumps({"alg": "HS256", "kid": "rsa"}).encode()
    shared = f"{base64url(header)}.{base64url(json.dumps(GOOD).encode())}"
    forged = f"{shared}.{base64url(hmac.digest(pem, shared.encode(), 'sha256'))}"
    assert "algorithm" in str(await outcome(broker, forged))
    assert "algorithm" in str(await outcome(broker, unsecured(GOOD)))
    assert "algorithm" in str(await outcome(broker, unsecured(GOOD, "None")))
    assert "InvalidSignatureError" in str(await outcome(broker, signed(GOOD, "rsa", key=OTHER_RSA_KEY)))
    assert "no key fits" in str(await outcome(broker, signed(GOOD, "ec", "RS256", RSA_KEY)))
    token = signed(GOOD)
    assert "InvalidSignatureError" in str(await outcome(broker, f"{token[:-6]}AAAAAA"))
    head, claims, signature = token.split(".")
    other = base64url(json.dumps({**GOOD, "sub": "admin"}).encode())
    assert "InvalidSignatureError" in str(await outcome(broker, f"{head}.{other}.{signature}"))
    assert isinstance(await outcome(broker, f"{head}.{claims}.{signature}"), Identity)


async def test_tokens_without_a_signature_are_taken_where_the_configuration_says_so() -> None:
    broker = unsecured_broker()
    assert await outcome(broker, unsecured(GOOD)) == Identity("User:alice", (NOW + 600) * 1000)
    assert "expired" in str(await outcome(broker, unsecured({**GOOD, "exp": NOW - 31})))
    assert "signature" in str(await outcome(broker, signed(GOOD)))
    assert "signature" in str(await outcome(broker, unsecured(GOOD)[:-1] + ".eA"))
    strict = unsecured_broker("sasl.oauthbearer.expected.audience=other")
    assert "Audience" in str(await outcome(strict, unsecured(GOOD)))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"p=x,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,auth=Bearer a.b.c\x01\x01",
        b"n,,\x01au th=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
async def test_a_message_of_another_form_is_refused(message: bytes) -> None:
    exchange = unsecured_broker().begin("OAUTHBEARER", is_private=True)
    for _ in range(2):
        with pytest.raises(AuthenticationError) as caught:
            await exchange.respond(message)
        assert str(caught.value.__cause__) == "its first message is malformed"


async def test_a_message_that_is_larger_than_any_token_is_not_looked_at() -> None:
    claims = {"sub": "alice", "exp": NOW_MS // 1000 + 60, "groups": ["x" * 1_000] * 20}
    exchange = unsecured_broker().begin("OAUTHBEARER", is_private=True)
    await exchange.respond(bearer(unsecured(claims)))
    assert exchange.identity is not None
    for message in (
        bearer(unsecured({**claims, "groups": ["x" * 1_000] * 50})),
        b"n,,\x01" + b"a=\x01" * 99_999 + b"\x01",
    ):
        exchange = unsecured_broker().begin("OAUTHBEARER", is_private=True)
        with pytest.raises(AuthenticationError) as caught:
            await exchange.respond(message)
        assert str(caught.value.__cause__) == f"its message has more than {TOKEN_BYTES_MAX:,} bytes"


async def test_a_token_whose_json_is_odd_is_refused() -> None:
    header = base64url(b'{"alg":"none"}')
    for claims in (
        b'{"sub":' + b"[" * 30_000,
        b'{"exp":' + b"9" * 30_000 + b"}",
        b'{"sub":"\\ud800","exp":9e9}',
        b"[1]",
    ):
        for token in (f"{header}.{base64url(claims)}.", f"{base64url(claims)}.e30."):
            exchange = unsecured_broker().begin("OAUTHBEARER", is_private=True)
            assert await exchange.respond(bearer(token)) == INVALID_TOKEN
            assert exchange.identity is None


# --- Keys -------------------------------------------------------------------------------------------------------------


@each_case(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "no list of keys"),
        (b'{"keys": {}}', "no list of keys"),
        (b'{"keys": []}', "no key that tokens may be signed with"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]}', "no key that"),
        (b'{"keys": [7, {"kty": "RSA"}, {"kty": "EC", "crv": "P-257"}]}', "no key that"),
        (b'{"keys": [{"kty": "RSA", "d": "AA"}]}', "a private key"),
        (key_set({**public_keys()[0], "use": "enc"}), "no key that"),
    ],
)
def test_a_key_set_of_another_form_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_keys(content)


def test_keys_of_other_kinds_are_left_out_and_their_algorithm_holds() -> None:
    rsa_key = {**public_keys()[0], "alg": "RS384"}
    (key,) = parse_keys(key_set({"kty": "oct", "k": "AA"}, {"kty": "new"}, rsa_key))
    assert key.fits("RS384")
    assert not key.fits("RS256")
    assert not key.fits("ES256")


def test_so_many_keys_of_a_provider_are_kept() -> None:
    assert len(parse_keys(key_set(*public_keys() * 40))) == oauthbearer.KEYS_MAX


def test_a_file_and_nothing_without_end_is_read(tmp_path: Path) -> None:
    file = tmp_path / "oauthbearer.json"
    file.write_bytes(b"x" * 10)
    assert read_url(f"file://{file}") == b"x" * 10
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read_url(f"file://{file}", 9)
    with pytest.raises(OSError):
        read_url(f"file://{tmp_path}/none")


@contextmanager
def https_server(authority: trustme.CA, replies: Mapping[str, tuple[int, str, bytes]]) -> Iterator[str]:
    """A server on this machine, which answers each path with a status, where else to look, and a body; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, location, body = replies[self.path]
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_keys_are_read_over_tls_alone_whose_certificate_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a redirect leads over HTTP, it is not followed, also where that would lead back to TLS."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    body = key_set(*public_keys())
    replies = {"/keys": (200, "", body), "/moved": (302, "/keys", b""), "/gone": (404, "", b"no")}
    replies["/plain"] = (302, "http://localhost:9/keys", b"")
    with https_server(authority, replies) as address:
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            read_url(f"{address}/keys")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert len(parse_keys(read_url(f"{address}/keys"))) == len(parse_keys(body))
        assert read_url(f"{address}/moved") == body
        with pytest.raises(OSError, match="answers 404"):
            read_url(f"{address}/gone")
        with pytest.raises(ValueError, match="an address without TLS"):
            read_url(f"{address}/plain")


class _Provider:
    """Answers with a key set, or fails."""

    def __init__(self, *kids: str) -> None:
        self.kids = kids
        self.asked = 0

    def read(self, _url: str) -> bytes:
        self.asked += 1
        if not self.kids:
            raise OSError("no route")
        return key_set(*({**public_keys()[0], "kid": kid} for kid in self.kids))


def _keys_of(provider: _Provider, clock: ManualClock) -> Jwks:
    return Jwks("https://provider/keys", 3_600_000, clock, InlineOffload(), provider.read)


async def test_keys_are_read_once_and_again_when_they_are_old(autojump_clock: MockClock) -> None:
    clock, provider = ManualClock(NOW_MS), _Provider("a")
    keys = _keys_of(provider, clock)
    for _ in range(5):
        assert len(await keys.keys("a")) == 1
    assert provider.asked == 1
    provider.kids = ("a", "b")
    clock.now += 3_600_000
    await trio.sleep(3600)
    assert len(await keys.keys(None)) == 2
    assert provider.asked == 2


async def test_an_unknown_key_is_looked_up_at_once_but_a_storm_of_them_asks_seldom(autojump_clock: MockClock) -> None:
    provider = _Provider("a")
    keys = _keys_of(provider, ManualClock(NOW_MS))
    await keys.keys("a")
    await trio.sleep(oauthbearer.RETRY_SECONDS)
    provider.kids = ("a", "new")
    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(keys.keys, f"made up {number}")
        nursery.start_soon(keys.keys, {"un": "hashable"})
    assert provider.asked == 2
    assert len(await keys.keys("new")) == 1
    for number in range(100):
        assert await keys.keys(f"made up {number}") == []
    assert provider.asked == 2
    await trio.sleep(oauthbearer.RETRY_SECONDS)
    await keys.keys("made up")
    assert provider.asked == 3


async def test_keys_stay_while_the_provider_cannot_be_reached(autojump_clock: MockClock) -> None:
    clock, provider = ManualClock(NOW_MS), _Provider("a")
    keys = _keys_of(provider, clock)
    await keys.keys("a")
    provider.kids = ()
    clock.now += 3_600_000
    for _ in range(30):
        await trio.sleep(1)
        assert len(await keys.keys("a")) == 1
    assert 3 <= provider.asked <= 5


_KEYS = "sasl.oauthbearer.jwks.endpoint.url=https://provider/keys"


@each_case(
    ("flags", "why"),
    [
        ((), "needs sasl.oauthbearer.jwks.endpoint.url"),
        (("sasl.oauthbearer.jwks.endpoint.url=http://provider/keys",), "must be https://"),
        (("sasl.oauthbearer.jwks.endpoint.url=https:///keys",), "must be https://"),
        (("sasl.oauthbearer.jwks.endpoint.url=https://[/keys",), "must be https://"),
        (("sasl.oauthbearer.jwks.endpoint.url=file://host/keys",), "must be https://"),
        (("sasl.oauthbearer.jwks.endpoint.url=https://me:secret@provider/keys",), "has a password in it"),
        ((_KEYS, "sasl.oauthbearer.expected.issuer=https://provider"), "needs sasl.oauthbearer.expected.audience"),
        ((_KEYS, "sasl.oauthbearer.allow.unverified.audience=true"), "needs sasl.oauthbearer.expected.issuer"),
    ],
)
def test_a_configuration_with_which_no_token_could_be_checked_is_refused(flags: tuple[str, ...], why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why) as caught:
        load_config(None, "", {}, ["sasl.enabled.mechanisms=OAUTHBEARER", *flags])
    assert "secret" not in caught.value.message
