"""What a Kafka says to clients that log in, and to those that try otherwise: stories of one connection each.

``python -m tests.interop.kafka_security_cases`` tells them to a real Kafka and writes ``kafka_security_answers.json``.
A story is a line for each step: what was sent, and what came: the fields of the response, ``closed``, or ``silence``.
"""

import base64
import json
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog_protocol.kafka import messages
from tests.interop.kafka_cases import keep
from tests.interop.kafka_settings import kafka_settings
from tests.interop.kafka_wire import Plain, Wire, request
from tests.interop.peer import Kafka, free_ports, kafka_script
from tests.interop.sasl_client import (
    MECHANISMS,
    NONCE,
    SCRAM,
    bearer,
    client_final,
    client_first_bare,
    salted_password,
    unsecured_token,
    valid_token,
)
from tests.interop.sasl_conversation import USERS, ClosedError, Conversation

ANSWERS: Final = Path(__file__).with_name("kafka_security_answers.json")

ITERATIONS: Final = 4096
SALT: Final = b"salt-of-sixteen-"

REAUTH_MS: Final = 3000
"""``connections.max.reauth.ms`` of the listener SHORT."""

_AT_ONCE: Final = 16
"""Stories that are told side by side: most of them wait."""

LISTENERS: Final = ("PLAINTEXT", "SASL", "SHORT")
"""Names of listeners: of no authentication, of every mechanism, and the same with sessions that end."""


# --- The stories ------------------------------------------------------------------------------------------------------


class Story(NamedTuple):
    """What is done on a new connection to a listener."""

    title: str
    tell: Callable[[Conversation], object]
    listener: str = "SASL"


def _stories() -> Iterator[Story]:
    yield from _handshakes()
    yield from _states()
    yield from _plain()
    for mechanism in SCRAM:
        yield from _scram(mechanism)
    yield from _oauthbearer()
    yield from _sizes()
    yield from _sessions()
    yield from _accounts()


def _handshakes() -> Iterator[Story]:
    def known(mechanism: str, version: int) -> Callable[[Conversation], object]:
        return lambda talk: talk.handshake(mechanism, version)

    def unknown(version: int) -> Callable[[Conversation], object]:
        frame = _sized(_header(17, version) + struct.pack(">h", 5) + b"PLAIN")
        return lambda talk: talk.send(frame, f"SaslHandshake v{version}")

    for version in range(2):
        for mechanism in (*MECHANISMS, "GSSAPI", "plain", "", "X" * 300):
            yield Story(f"handshake v{version} {mechanism[:20]!r}", known(mechanism, version))
    for version in (-1, 2, 99):
        yield Story(f"handshake v{version}, which there is not", unknown(version))
    yield Story("a handshake where there is no authentication", lambda talk: talk.handshake("PLAIN"), "PLAINTEXT")

    def needless(talk: Conversation) -> None:
        talk.authenticate(b"\0a\0b", "PLAIN")
        talk.is_served()

    yield Story("a token where there is no authentication", needless, "PLAINTEXT")


def _header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 6) + b"seglog"


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _versions(talk: Conversation, version: int) -> None:
    fields = {} if version < 3 else {"client_software_name": "seglog", "client_software_version": "1"}
    talk.ask("ApiVersions", version, fields)


def _states() -> Iterator[Story]:
    def versions_first(talk: Conversation) -> None:
        for version in (0, 3, 4, 0):
            _versions(talk, version)
        talk.plain_login()
        talk.is_served()

    def versions_between(talk: Conversation) -> None:
        talk.handshake("PLAIN")
        _versions(talk, 3)
        talk.authenticate("\0alice\0alice-secret", "PLAIN as alice")

    def another_mechanism(talk: Conversation) -> None:
        talk.handshake("GSSAPI")
        talk.plain_login()
        talk.is_served()

    def two_handshakes(talk: Conversation) -> None:
        talk.handshake("PLAIN")
        talk.handshake("SCRAM-SHA-256")
        talk.authenticate("\0alice\0alice-secret", "PLAIN as alice")

    def after_login(talk: Conversation) -> None:
        talk.plain_login()
        talk.handshake("PLAIN")
        talk.authenticate("\0alice\0alice-secret", "PLAIN as alice")
        talk.is_served()

    def token_after_login(talk: Conversation) -> None:
        talk.plain_login()
        talk.authenticate("\0alice\0alice-secret", "PLAIN as alice")
        talk.is_served()

    def metadata_between(talk: Conversation) -> None:
        talk.handshake("PLAIN")
        talk.is_served()
        talk.authenticate("\0alice\0alice-secret", "PLAIN as alice")

    def metadata_in_scram(talk: Conversation) -> None:
        talk.handshake("SCRAM-SHA-256")
        talk.scram_first("SCRAM-SHA-256")
        talk.is_served()
        talk.wait(1, "and then")

    def after_failure(talk: Conversation) -> None:
        talk.plain_login(password="wrong")
        talk.plain_login()

    def unsupported_versions(talk: Conversation) -> None:
        talk.send(_sized(_header(18, 99) + b"\0\0\0"), "ApiVersions v99")
        talk.plain_login()
        talk.is_served()

    def bare_token(talk: Conversation) -> None:
        talk.token(b"\0alice\0alice-secret", "a bare token of PLAIN")

    def bare_after_v1(talk: Conversation) -> None:
        talk.handshake("PLAIN", 1)
        talk.token(b"\0alice\0alice-secret", "a bare token of PLAIN")

    def authenticate_after_v0(talk: Conversation) -> None:
        talk.handshake("PLAIN", 0)
        talk.authenticate("\0alice\0alice-secret", "PLAIN as alice")

    def unknown_version(talk: Conversation) -> None:
        talk.handshake("PLAIN")
        talk.send(_sized(_header(36, 9) + _sized(b"\0alice\0alice-secret")), "SaslAuthenticate v9")

    def together(talk: Conversation) -> None:
        login = {"auth_bytes": b"\0alice\0alice-secret".hex()}
        talk.ask_together(
            (request("SaslHandshake", {"mechanism": "PLAIN"}), 1),
            (request("SaslAuthenticate", login), 2),
            (request("Metadata", {"topics": []}), 9),
        )

    yield Story("versions first", versions_first)
    yield Story("versions after the handshake", versions_between)
    yield Story("versions that there are not, then a login", unsupported_versions)
    yield Story("a mechanism that is there after one that is not", another_mechanism)
    yield Story("two handshakes", two_handshakes)
    yield Story("a handshake after the login", after_login)
    yield Story("a token after the login", token_after_login)
    yield Story("a token without a handshake", lambda talk: talk.authenticate("\0alice\0alice-secret", "PLAIN"))
    yield Story("metadata without a login", lambda talk: talk.is_served())
    yield Story("metadata after the handshake", metadata_between)
    yield Story("metadata in the middle of SCRAM", metadata_in_scram)
    yield Story("another login after a failure", after_failure)
    yield Story("a bare token without a handshake", bare_token)
    yield Story("a bare token after handshake v1", bare_after_v1)
    yield Story("SaslAuthenticate after handshake v0", authenticate_after_v0)
    yield Story("SaslAuthenticate of a version that there is not", unknown_version)
    yield Story("all at once", together)
    yield Story("an api that there is not", lambda talk: talk.send(_sized(_header(999, 0)), "api 999"))
    yield Story("a request that ends too early", lambda talk: talk.send(_sized(b"\0\x11\0"), "three bytes"))
    yield Story("a length of zero", lambda talk: talk.send(_sized(b""), "a length of 0"))
    yield Story("a length below zero", lambda talk: talk.send(b"\xff\xff\xff\xff", "a length of -1"))
    yield Story("not Kafka", lambda talk: talk.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP"))
    yield Story("TLS where there is none", lambda talk: talk.send(_client_hello(), "a ClientHello"))


def _client_hello() -> bytes:
    return bytes.fromhex("1603010200010001fc0303") + b"\0" * 506


def _plain() -> Iterator[Story]:
    def login(token: str | bytes, says: str) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.handshake("PLAIN")
            talk.authenticate(token, says)
            talk.is_served()

        return tell

    for version in range(3):

        def right(talk: Conversation, version: int = version) -> None:
            talk.plain_login(version=version)
            talk.is_served()

        def wrong(talk: Conversation, version: int = version) -> None:
            talk.plain_login(password="wrong", version=version)
            talk.is_served()

        yield Story(f"PLAIN v{version}", right)
        yield Story(f"PLAIN v{version} with a wrong password", wrong)
    tokens: Mapping[str, str | bytes] = {
        "with an unknown user": "\0nobody\0alice-secret",
        "for oneself": "alice\0alice\0alice-secret",
        "for another": "bob\0alice\0alice-secret",
        "without a user": "\0\0alice-secret",
        "without a password": "\0alice\0",
        "empty": "",
        "of two parts": "alice\0alice-secret",
        "of one part": "alice",
        "of four parts": "\0alice\0alice-secret\0",
        "that is no UTF-8": b"\0alice\0\xff\xfe",
        "longer than any password": "\0alice\0" + "x" * 10_000,
        "with a space behind": "\0alice\0alice-secret ",
        "in another case": "\0Alice\0alice-secret",
    }
    for title, token in tokens.items():
        yield Story(f"PLAIN {title}", login(token, title))

    def bare(password: str) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.handshake("PLAIN", 0)
            talk.token(f"\0alice\0{password}".encode(), "a bare token of PLAIN")
            talk.is_served()

        return tell

    yield Story("PLAIN in bare tokens", bare("alice-secret"))
    yield Story("PLAIN in bare tokens with a wrong password", bare("wrong"))


def _scram(mechanism: str) -> Iterator[Story]:
    def served(**how: str) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.scram_login(mechanism, **how)
            talk.is_served()

        return tell

    def first(message: str) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.handshake(mechanism)
            talk.authenticate(message, message)

        return tell

    def final(change: Callable[[str, str, str], str | bytes], says: str) -> Callable[[Conversation], object]:
        """``change`` is given the client's first message without its header, the broker's, and the right last one."""

        def tell(talk: Conversation) -> None:
            talk.handshake(mechanism)
            bare, server_first = talk.scram_first(mechanism)
            right, verifier = client_final(mechanism, bare, server_first, USERS["alice"])
            talk.authenticate(change(bare, server_first, right), says, expects={verifier: "v=(as it should be)"})
            talk.is_served()

        return tell

    def bound(header: str, says: str, claimed: str | None = None) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.handshake(mechanism)
            bare, server_first = talk.scram_first(mechanism, header=header)
            binding = header if claimed is None else claimed
            right, verifier = client_final(mechanism, bare, server_first, USERS["alice"], binding=binding)
            talk.authenticate(right, says, expects={verifier: "v=(as it should be)"})
            talk.is_served()

        return tell

    def replayed(talk: Conversation) -> None:
        talk.handshake(mechanism)
        talk.scram_first(mechanism)
        talk.scram_first(mechanism)

    def bare_tokens(talk: Conversation) -> None:
        talk.handshake(mechanism, 0)
        bare = client_first_bare("alice")
        server_first = talk.token(f"n,,{bare}".encode(), "client-first").decode()
        right, verifier = client_final(mechanism, bare, server_first, USERS["alice"])
        talk.token(right.encode(), "the proof", {verifier: "v=(as it should be)"})
        talk.is_served()

    def bare_wrong(talk: Conversation) -> None:
        talk.handshake(mechanism, 0)
        bare = client_first_bare("alice")
        server_first = talk.token(f"n,,{bare}".encode(), "client-first").decode()
        right, _ = client_final(mechanism, bare, server_first, "wrong")
        talk.token(right.encode(), "the proof of another password")

    def after_the_end(talk: Conversation) -> None:
        talk.scram_login(mechanism)
        talk.authenticate("", "nothing")
        talk.is_served()

    def changed_nonce(bare: str, server_first: str, right: str) -> str:
        return client_final(mechanism, bare, server_first, USERS["alice"], nonce=NONCE + "another")[0]

    def told(title: str, tell: Callable[[Conversation], object]) -> Story:
        return Story(f"{mechanism} {title}", tell)

    yield told("", served())
    yield told("with a wrong password", served(password="wrong"))
    yield told("with odd characters", served(name="weird,=name"))
    yield told("with an unknown user", served(name="nobody"))
    yield told("with an extension", served(more=",tokenauth=false"))
    yield told("with a mandatory extension", first(f"n,,m=ext,{client_first_bare('alice')}"))
    yield told("with an extension that nobody knows", served(more=",x=1"))
    yield told("for a delegation token", first(f"n,,{client_first_bare('alice')},tokenauth=true"))
    yield told("that could bind", bound("y,,", "the proof"))
    yield told("that binds", first(f"p=tls-unique,,{client_first_bare('alice')}"))
    yield told("that binds to tls-exporter", first(f"p=tls-exporter,,{client_first_bare('alice')}"))
    yield told("that binds to nothing", first(f"p=,,{client_first_bare('alice')}"))
    yield told("for oneself", bound("n,a=alice,", "the proof"))
    yield told("for another", bound("n,a=bob,", "the proof"))
    yield told("that forgets what it said of binding", bound("y,,", "the proof", claimed="n,,"))
    yield told("with a binding that it did not announce", bound("n,,", "the proof", claimed="p=tls-unique,,x"))
    yield told("without a header", first(client_first_bare("alice")))
    yield told("without a nonce", first("n,,n=alice"))
    yield told("with an empty nonce", first("n,,n=alice,r="))
    yield told("without a name", first(f"n,,r={NONCE}"))
    yield told("with an empty name", first(f"n,,n=,r={NONCE}"))
    yield told("with a name that is badly escaped", first(f"n,,n=al=ice,r={NONCE}"))
    yield told("with nothing", first(""))
    yield told("with what is not SCRAM", first("\0alice\0alice-secret"))
    yield told("that is no UTF-8", lambda talk: (talk.handshake(mechanism), talk.authenticate(b"n,,n=\xff,r=a", "...")))
    yield told("with the proof first", first(f"c=biws,r={NONCE},p=YQ=="))
    yield told("with the first message again", replayed)
    yield told("with another nonce", final(changed_nonce, "the proof for another nonce"))
    yield told(
        "with the nonce of the client alone",
        final(
            lambda bare, server_first, _: client_final(mechanism, bare, server_first, USERS["alice"], nonce=NONCE)[0],
            "the proof for the client's nonce",
        ),
    )
    yield told("with a proof that is cut", final(lambda *said: said[2][:-8], "most of the proof"))
    yield told("without a proof", final(lambda *said: said[2].rpartition(",p=")[0], "no proof"))
    yield told("with a proof that is no base64", final(lambda *said: said[2].rpartition(",p=")[0] + ",p=!", "p=!"))
    yield told("with a proof of one byte", final(lambda *said: said[2].rpartition(",p=")[0] + ",p=YQ==", "p=YQ=="))
    yield told(
        "with an extension in its last message",
        final(lambda *said: said[2].replace(",p=", ",x=1,p="), "the proof of another message"),
    )
    yield told("with nothing last", final(lambda *_: "", "nothing"))
    yield told("with what comes after the end", after_the_end)
    yield told("in bare tokens", bare_tokens)
    yield told("in bare tokens with a wrong password", bare_wrong)


def _unlike(message: str) -> bytes:
    """A token in a message of another form."""
    return message.format(valid_token()).encode()


def _oauthbearer() -> Iterator[Story]:
    def login(made: Callable[[], bytes], says: str) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.handshake("OAUTHBEARER")
            answer = talk.authenticate(made(), says)
            if answer.error_code == 0 and answer.auth_bytes:
                talk.authenticate(b"\x01", "the client has seen the error")
            talk.is_served()

        return tell

    def session(seconds: int) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.handshake("OAUTHBEARER")
            talk.authenticate(bearer(valid_token(lives_seconds=seconds)), f"a token for {seconds} s")
            talk.is_served()
            talk.wait(seconds + 0.3, "its time passes")
            talk.is_served()

        return tell

    now = time.time
    tokens: Mapping[str, Callable[[], bytes]] = {
        "": lambda: bearer(valid_token()),
        "for oneself": lambda: bearer(valid_token(), authzid="alice"),
        "for another": lambda: bearer(valid_token(), authzid="bob"),
        "with extensions": lambda: bearer(valid_token(), extensions="traceId=123\x01"),
        "that has ended": lambda: bearer(valid_token(lives_seconds=-60)),
        "that is not valid yet": lambda: bearer(valid_token(iat=int(now()) + 3600, lives_seconds=7200)),
        "without an end": lambda: bearer(unsecured_token(sub="alice", iat=int(now()))),
        "without a subject": lambda: bearer(unsecured_token(iat=int(now()), exp=int(now()) + 60)),
        "with an empty subject": lambda: bearer(valid_token(sub="")),
        "with a number as subject": lambda: bearer(valid_token(sub=1)),
        "without a time of issue": lambda: bearer(unsecured_token(sub="alice", exp=int(now()) + 3600)),
        "with scopes": lambda: bearer(valid_token(scope=["a", "b"])),
        "of two parts": lambda: bearer(valid_token()[:-1]),
        "with a signature": lambda: bearer(valid_token() + "c2lnbmF0dXJl"),
        "that says it is signed": lambda: bearer(
            base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=") + "." + valid_token().split(".")[1] + "."
        ),
        "that is no token": lambda: bearer("nonsense"),
        "that is empty": lambda: bearer(""),
        "of another scheme": lambda: _unlike("n,,\x01auth=Basic {}\x01\x01"),
        "in another case": lambda: _unlike("n,,\x01auth=bearer {}\x01\x01"),
        "without a header": lambda: _unlike("auth=Bearer {}\x01\x01"),
        "without an end mark": lambda: _unlike("n,,\x01auth=Bearer {}\x01"),
        "without a word": lambda: b"",
        "that binds": lambda: b"p=tls-unique,," + bearer(valid_token())[3:],
        "that could bind": lambda: b"y,," + bearer(valid_token())[3:],
        "with host and port": lambda: _unlike("n,,\x01host=a\x01port=1\x01auth=Bearer {}\x01\x01"),
        "with an extension named auth": lambda: bearer(valid_token(), extensions="auth=x\x01"),
        "with an extension that is none": lambda: bearer(valid_token(), extensions="1=x\x01"),
    }
    for title, made in tokens.items():
        yield Story(f"OAUTHBEARER {title}", login(made, title or "a token"))
    yield Story("OAUTHBEARER for two seconds", session(2))

    def bare(talk: Conversation) -> None:
        talk.handshake("OAUTHBEARER", 0)
        talk.token(bearer(valid_token()), "a token")
        talk.is_served()

    yield Story("OAUTHBEARER in bare tokens", bare)


def _sizes() -> Iterator[Story]:
    def announced(size: int) -> Callable[[Conversation], object]:
        return lambda talk: talk.send(struct.pack(">i", size) + b"\0\x11\0\x01", f"a length of {size}")

    def token(size: int) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.handshake("PLAIN")
            talk.authenticate(b"\0alice\0" + b"x" * (size - 7), f"a token of {size}")

        return tell

    limit = 512 * 1024
    yield Story("a frame of the limit", announced(limit))
    yield Story("a frame beyond the limit", announced(limit + 1))
    yield Story("a frame of 100 MiB", announced(100 * 1024 * 1024))
    yield Story("a token below the limit", token(limit - 100))
    yield Story("a token beyond the limit", token(limit + 1))

    def truncated(talk: Conversation) -> None:
        talk.handshake("PLAIN")
        talk.send(
            _sized(_header(36, 1) + struct.pack(">i", 100) + b"\0alice\0alice-secret"), "a token with a length of 100"
        )

    def null(talk: Conversation) -> None:
        talk.handshake("PLAIN")
        talk.send(_sized(_header(36, 1) + struct.pack(">i", -1)), "a token with a length of -1")

    yield Story("a token that is cut", truncated)
    yield Story("a token that is null", null)


def _sessions() -> Iterator[Story]:
    def again(name: str, password: str | None = None) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.plain_login()
            talk.is_served()
            talk.wait(1.1, "a second passes")
            talk.plain_login(name, password)
            talk.is_served()

        return tell

    def by(mechanism: str) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.plain_login()
            talk.wait(1.1, "a second passes")
            talk.scram_login(mechanism)
            talk.is_served()

        return tell

    def scram(talk: Conversation) -> None:
        for _ in range(2):
            talk.scram_login("SCRAM-SHA-256")
            talk.is_served()
            talk.wait(1.1, "a second passes")

    def scram_wrong(talk: Conversation) -> None:
        talk.scram_login("SCRAM-SHA-256")
        talk.wait(1.1, "a second passes")
        talk.scram_login("SCRAM-SHA-256", password="wrong")

    def expired(talk: Conversation) -> None:
        talk.plain_login()
        talk.wait(REAUTH_MS / 1000 + 0.5, "the session ends")
        talk.is_served()

    def late(talk: Conversation) -> None:
        talk.plain_login()
        talk.wait(REAUTH_MS / 1000 + 0.5, "the session ends")
        talk.plain_login()
        talk.is_served()

    def versions(talk: Conversation) -> None:
        talk.plain_login()
        talk.wait(REAUTH_MS / 1000 + 0.5, "the session ends")
        _versions(talk, 3)

    def between(talk: Conversation) -> None:
        talk.plain_login()
        talk.wait(1.1, "a second passes")
        talk.handshake("PLAIN")
        talk.is_served()
        talk.wait(1, "and then")

    def between_scram(talk: Conversation) -> None:
        talk.plain_login()
        talk.wait(1.1, "a second passes")
        talk.handshake("PLAIN")
        _versions(talk, 3)
        talk.wait(1, "and then")

    def at_once(talk: Conversation) -> None:
        talk.plain_login()
        talk.plain_login()
        talk.plain_login()
        talk.is_served()

    def no_handshake(talk: Conversation) -> None:
        talk.plain_login()
        talk.wait(1.1, "a second passes")
        talk.authenticate("\0alice\0alice-secret", "PLAIN as alice")
        talk.is_served()

    def unknown(talk: Conversation) -> None:
        talk.plain_login()
        talk.wait(1.1, "a second passes")
        talk.handshake("GSSAPI")
        talk.is_served()

    def old(version: int) -> Callable[[Conversation], object]:
        def tell(talk: Conversation) -> None:
            talk.plain_login(version=version)
            talk.wait(REAUTH_MS / 1000 + 0.5, "the session ends")
            talk.is_served()

        return tell

    def old_again(talk: Conversation) -> None:
        talk.plain_login(version=1)
        talk.wait(1.1, "a second passes")
        talk.handshake("PLAIN", 0)
        talk.is_served()

    def bare_again(talk: Conversation) -> None:
        talk.plain_login(version=1)
        talk.wait(1.1, "a second passes")
        talk.handshake("PLAIN", 0)
        talk.token(b"\0alice\0alice-secret", "a bare token of PLAIN")
        talk.is_served()

    def bearer_again(talk: Conversation) -> None:
        for seconds in (2, 60):
            talk.handshake("OAUTHBEARER")
            talk.authenticate(bearer(valid_token(lives_seconds=seconds)), f"a token for {seconds} s")
            talk.is_served()
            talk.wait(1.1, "a second passes")

    def told(title: str, tell: Callable[[Conversation], object]) -> Story:
        return Story(f"session: {title}", tell, "SHORT")

    yield told("the same account again", again("alice"))
    yield told("another account", again("bob"))
    yield told("a wrong password", again("alice", "wrong"))
    yield told("another mechanism", by("SCRAM-SHA-256"))
    yield told("SCRAM again", scram)
    yield told("SCRAM with a wrong password", scram_wrong)
    yield told("OAUTHBEARER again", bearer_again)
    yield told("it ends", expired)
    yield told("a login after its end", late)
    yield told("versions after its end", versions)
    yield told("a request in the middle of another login", between)
    yield told("versions in the middle of another login", between_scram)
    yield told("logins without a pause", at_once)
    yield told("a token without a handshake", no_handshake)
    yield told("a mechanism that there is not", unknown)
    yield told("SaslAuthenticate v0 knows none", old(0))
    yield told("SaslAuthenticate v1", old(1))
    yield told("a handshake v0 in the middle", old_again)
    yield told("a bare token in the middle", bare_again)


def _accounts() -> Iterator[Story]:
    """DescribeUserScramCredentials and AlterUserScramCredentials; each says what it leaves behind."""

    def upsertion(name: str = "carol", mechanism: int = 1, iterations: int = 4096, **more: str) -> dict[str, Plain]:
        hashed = {number: each for each, (number, _) in SCRAM.items()}.get(mechanism, "SCRAM-SHA-256")
        salted = salted_password("carol-secret", SALT, max(iterations, 1), hashed).hex()
        made = {"name": name, "mechanism": mechanism, "iterations": iterations}
        return {**made, "salt": SALT.hex(), "salted_password": salted, **more}

    def alter(title: str, *upsertions: Plain, deletions: Plain = (), leaves: bool = True) -> Story:
        def tell(talk: Conversation) -> None:
            talk.ask("AlterUserScramCredentials", 0, {"upsertions": [*upsertions], "deletions": [*deletions]})
            talk.settle()
            talk.ask("DescribeUserScramCredentials", 0, {"users": None}, says="all users")
            if leaves:
                return
            with talk.beside("PLAINTEXT") as admin:
                made = [gone(each["name"], each["mechanism"]) for each in upsertions]
                admin.ask("AlterUserScramCredentials", 0, {"upsertions": [], "deletions": made})
            talk.settle()

        return Story(f"accounts: {title}", tell, "PLAINTEXT")

    def gone(name: str, mechanism: int = 1) -> dict[str, Plain]:
        return {"name": name, "mechanism": mechanism}

    def describe(title: str, users: list[str] | None) -> Story:
        asked = {"users": users if users is None else [{"name": name} for name in users]}
        return Story(f"accounts: {title}", lambda talk: talk.ask("DescribeUserScramCredentials", 0, asked), "PLAINTEXT")

    yield describe("all", None)
    yield describe("an empty list", [])
    yield describe("one and one that is not there", ["alice", "nobody"])
    yield describe("twice", ["alice", "alice", "bob"])
    yield describe("an empty name is described", ["", "alice"])
    yield alter("none")
    yield alter("a new one", upsertion())
    yield alter("another password", upsertion(iterations=8192))
    yield alter("another mechanism", upsertion(mechanism=2))
    yield alter("too few iterations", upsertion(iterations=4095))
    yield alter("the most iterations", upsertion(iterations=16384))
    yield alter("too many iterations", upsertion(iterations=16385))
    yield alter("no iterations", upsertion(iterations=0))
    yield alter("fewer than no iterations", upsertion(iterations=-1))
    yield alter("an unknown mechanism", upsertion(mechanism=3))
    yield alter("mechanism zero", upsertion(mechanism=0))
    yield alter("an empty name", upsertion(""))
    yield alter("an empty salt", upsertion("dave", salt=""), leaves=False)
    yield alter("an empty password", upsertion("erin", salted_password=""), leaves=False)
    yield alter("a short password", upsertion("erin", salted_password="00"), leaves=False)
    yield alter("twice in one", upsertion(), upsertion(iterations=5000))
    yield alter("both mechanisms in one", upsertion("frank"), upsertion("frank", 2))
    yield alter("made and deleted in one", upsertion(), deletions=[gone("carol")])
    yield alter("deleted in one mechanism and made in the other", upsertion("frank", 2), deletions=[gone("frank")])
    yield alter("a first mechanism of two", upsertion("two", 1))
    yield alter("a second mechanism of two", upsertion("two", 2))
    yield alter("one good and one bad", upsertion("gina"), upsertion("henry", iterations=1))
    yield alter("one good and one bad of one name", upsertion("ida"), upsertion("ida", 2, iterations=1))
    yield alter("deleted in an unknown mechanism", deletions=[gone("carol", 0), gone("frank", 9)])
    yield alter("deleted and not there", deletions=[gone("nobody")])
    yield alter("deleted with an empty name", deletions=[gone("")])
    yield alter("deleted twice in one", deletions=[gone("carol"), gone("carol")])
    yield alter("deleted", deletions=[gone("carol"), gone("frank", 2), gone("gina")])
    yield alter("deleted in one mechanism and changed in the other", upsertion("two", 2), deletions=[gone("two")])
    yield alter("a mechanism that it has not", deletions=[gone("carol", 1)])
    yield alter("a name with every odd character", upsertion("o'dd,=:\u00e4 \u2603"))
    yield alter("a long name", upsertion("n" * 1000), leaves=False)

    def unauthorized(talk: Conversation) -> None:
        talk.ask("AlterUserScramCredentials", 0, {"upsertions": [upsertion("mallory")]})

    yield Story("accounts: without a login", unauthorized)

    def made_and_used(talk: Conversation) -> None:
        talk.scram_login("SCRAM-SHA-256", "used", "carol-secret")
        talk.is_served()

    yield alter("one that logs in", upsertion("used"))
    yield Story("accounts: it logs in", made_and_used)
    yield alter("one that logs in is deleted", deletions=[gone("used")])
    yield Story("accounts: it does not log in", made_and_used)

    def deleted_meanwhile(talk: Conversation) -> None:
        with talk.beside("PLAINTEXT") as admin:
            admin.ask("AlterUserScramCredentials", 0, {"upsertions": [upsertion("leaver")], "deletions": []})
            talk.settle()
            talk.scram_login("SCRAM-SHA-256", "leaver", "carol-secret")
            talk.is_served()
            admin.ask("AlterUserScramCredentials", 0, {"upsertions": [], "deletions": [gone("leaver")]})
        talk.wait(1.1, "it is deleted")
        talk.is_served()
        talk.scram_login("SCRAM-SHA-256", "leaver", "carol-secret")

    yield Story("accounts: one that is logged in is deleted", deleted_meanwhile, "SHORT")

    def changed_meanwhile(talk: Conversation) -> None:
        with talk.beside("PLAINTEXT") as admin:
            admin.ask("AlterUserScramCredentials", 0, {"upsertions": [upsertion("changer")], "deletions": []})
            talk.settle()
            talk.handshake("SCRAM-SHA-256")
            bare, first = talk.scram_first("SCRAM-SHA-256", "changer")
            admin.ask(
                "AlterUserScramCredentials", 0, {"upsertions": [upsertion("changer", iterations=5000)], "deletions": []}
            )
            talk.settle()
        final, verifier = client_final("SCRAM-SHA-256", bare, first, "carol-secret")
        talk.authenticate(final, "the proof", expects={verifier: "v=(as it should be)"})
        talk.is_served()

    yield Story("accounts: one that logs in gets another password meanwhile", changed_meanwhile)


STORIES: Final = tuple(_stories())


def answers(ports: Mapping[str, int], stories: Iterable[Story], pause: float = 0) -> Iterator[tuple[Story, Plain]]:
    """Each story with a line for each step; ``pause`` as a Conversation has it.

    Those about accounts, which build on each other, are told one by one, and before them the others side by side.
    """

    def told(story: Story) -> Plain:
        with Conversation(ports, story.listener, pause) as talk:
            with suppress(ClosedError):
                story.tell(talk)
            return [list(step) for step in talk.steps]

    given = [*stories]
    alone = {story.title for story in given if story.title.startswith("accounts:")}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waited = {story.title: pool.submit(told, story) for story in given if story.title not in alone}
        for story in given:
            yield story, told(story) if story.title in alone else waited[story.title].result()


def make_users(port: int) -> None:
    """Make ``USERS``, with SCRAM credentials, through a listener without authentication."""
    with Wire(port) as wire:
        for mechanism, (number, _) in SCRAM.items():  # Kafka takes a name once in a request
            upsertions = [
                {
                    "name": name,
                    "mechanism": number,
                    "iterations": ITERATIONS,
                    "salt": SALT.hex(),
                    "salted_password": salted_password(password, SALT, ITERATIONS, mechanism).hex(),
                }
                for name, password in USERS.items()
            ]
            made = wire.ask(request("AlterUserScramCredentials", {"upsertions": upsertions, "deletions": []}), 0)
            assert isinstance(made, messages.AlterUserScramCredentialsResponse)
            assert not any(result.error_code for result in made.results), made


def captured(folder: Path) -> dict[str, Any]:
    """What a real Kafka says whose data are below ``folder``, by story."""
    kafka = Kafka(kafka_script(), folder / "kafka")
    names = [name for name in LISTENERS if name != "PLAINTEXT"]
    ports = {"PLAINTEXT": kafka.port} | {name: free_ports() for name in names}
    protocols = {name: "PLAINTEXT" if name == "PLAINTEXT" else "SASL_PLAINTEXT" for name in ports}
    reauth = {"listener.name.short.connections.max.reauth.ms": str(REAUTH_MS)}
    with kafka.running(*kafka_settings(ports, kafka.port + 1, protocols, more=reauth)):
        make_users(kafka.port)
        time.sleep(1)
        return {story.title: answer for story, answer in answers(ports, STORIES, 0.3)}


def _shown(steps: list[Plain]) -> str:
    """A line for each step."""
    return "[\n  " + ",\n  ".join(json.dumps(step) for step in steps) + "\n]"


def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder:
        keep(ANSWERS, captured(Path(folder)), _shown)


if __name__ == "__main__":
    main()
