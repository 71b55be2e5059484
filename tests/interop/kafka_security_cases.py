"""What a Kafka says to clients that log in, and to those that try otherwise: stories of one connection each.

``python -m tests.interop.kafka_security_cases`` tells them to a real Kafka and writes ``kafka_security_answers.json``.
A story is a line for each step: what was sent, and what came: the fields of the response, ``closed``, or ``silence``.
"""

import base64
import json
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import methodcaller as _do
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog_protocol.kafka import messages
from tests.interop.kafka_cases import rewrite
from tests.interop.kafka_settings import kafka_settings
from tests.interop.kafka_wire import Plain, Wire, request
from tests.interop.peer import Kafka, kafka_script
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
from tests.processes import free_port

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

Tell = Callable[[Conversation], object]


class Story(NamedTuple):
    """What is done on a new connection to a listener."""

    title: str
    tell: Tell
    listener: str = "SASL"


def _stories() -> Iterator[Story]:
    yield from _handshakes()
    yield from _told("", _STATES)
    yield from _plain()
    for mechanism in SCRAM:
        yield from _scram(mechanism)
    yield from _oauthbearer()
    yield from _told("", _SIZES)
    yield from _told("session: ", _SESSIONS, "SHORT")
    yield from _accounts()


def _told(prefix: str, stories: Mapping[str, tuple[Tell, ...]], listener: str = "SASL") -> Iterator[Story]:
    for title, steps in stories.items():
        yield Story(prefix + title, _one_by_one(*steps), listener)


def _one_by_one(*steps: Tell) -> Tell:
    def tell(talk: Conversation) -> None:
        for step in steps:
            step(talk)

    return tell


def _header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 6) + b"seglog"


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# What most steps are: a method of the conversation, and what it is given.

_CREDENTIALS: Final = "\0alice\0alice-secret"
_HANDSHAKE: Final = _do("handshake", "PLAIN")
_TOKEN: Final = _do("authenticate", _CREDENTIALS, "PLAIN as alice")
_BARE_TOKEN: Final = _do("token", _CREDENTIALS.encode(), "a bare token of PLAIN")
_LOGIN: Final = _do("plain_login")
_SERVED: Final = _do("is_served")
_AND_THEN: Final = _do("wait", 1, "and then")
_SECOND: Final = _do("wait", 1.1, "a second passes")
_ITS_END: Final = _do("wait", REAUTH_MS / 1000 + 0.5, "the session ends")
_AGAIN: Final = (_LOGIN, _SECOND)


def _versions(version: int) -> Tell:
    software = {"client_software_name": "seglog", "client_software_version": "1"}
    return _do("ask", "ApiVersions", version, {} if version < 3 else software)


def _frame(api_key: int, version: int, rest: bytes, says: str) -> Tell:
    return _do("send", _sized(_header(api_key, version) + rest), says)


def _handshakes() -> Iterator[Story]:
    for version in range(2):
        for mechanism in (*MECHANISMS, "GSSAPI", "plain", "", "X" * 300):
            yield Story(f"handshake v{version} {mechanism[:20]!r}", _do("handshake", mechanism, version))
    for version in (-1, 2, 99):
        tell = _frame(17, version, struct.pack(">h", 5) + b"PLAIN", f"SaslHandshake v{version}")
        yield Story(f"handshake v{version}, which there is not", tell)
    yield Story("a handshake where there is no authentication", _HANDSHAKE, "PLAINTEXT")
    needless = _one_by_one(_do("authenticate", b"\0a\0b", "PLAIN"), _SERVED)
    yield Story("a token where there is no authentication", needless, "PLAINTEXT")


def _together(talk: Conversation) -> None:
    talk.ask_together(
        (request("SaslHandshake", {"mechanism": "PLAIN"}), 1),
        (request("SaslAuthenticate", {"auth_bytes": _CREDENTIALS.encode().hex()}), 2),
        (request("Metadata", {"topics": []}), 9),
    )


_CLIENT_HELLO: Final = bytes.fromhex("1603010200010001fc0303") + b"\0" * 506

_STATES: Final[Mapping[str, tuple[Tell, ...]]] = {
    "versions first": (*map(_versions, (0, 3, 4, 0)), _LOGIN, _SERVED),
    "versions after the handshake": (_HANDSHAKE, _versions(3), _TOKEN),
    "versions that there are not, then a login": (_frame(18, 99, b"\0\0\0", "ApiVersions v99"), _LOGIN, _SERVED),
    "a mechanism that is there after one that is not": (_do("handshake", "GSSAPI"), _LOGIN, _SERVED),
    "two handshakes": (_HANDSHAKE, _do("handshake", "SCRAM-SHA-256"), _TOKEN),
    "a handshake after the login": (_LOGIN, _HANDSHAKE, _TOKEN, _SERVED),
    "a token after the login": (_LOGIN, _TOKEN, _SERVED),
    "a token without a handshake": (_do("authenticate", _CREDENTIALS, "PLAIN"),),
    "metadata without a login": (_SERVED,),
    "metadata after the handshake": (_HANDSHAKE, _SERVED, _TOKEN),
    "metadata in the middle of SCRAM": (
        *(_do("handshake", "SCRAM-SHA-256"), _do("scram_first", "SCRAM-SHA-256"), _SERVED, _AND_THEN),
    ),
    "another login after a failure": (_do("plain_login", password="wrong"), _LOGIN),
    "a bare token without a handshake": (_BARE_TOKEN,),
    "a bare token after handshake v1": (_do("handshake", "PLAIN", 1), _BARE_TOKEN),
    "SaslAuthenticate after handshake v0": (_do("handshake", "PLAIN", 0), _TOKEN),
    "SaslAuthenticate of a version that there is not": (
        *(_HANDSHAKE, _frame(36, 9, _sized(_CREDENTIALS.encode()), "SaslAuthenticate v9")),
    ),
    "all at once": (_together,),
    "an api that there is not": (_frame(999, 0, b"", "api 999"),),
    "a request that ends too early": (_do("send", _sized(b"\0\x11\0"), "three bytes"),),
    "a length of zero": (_do("send", _sized(b""), "a length of 0"),),
    "a length below zero": (_do("send", b"\xff\xff\xff\xff", "a length of -1"),),
    "not Kafka": (_do("send", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP"),),
    "TLS where there is none": (_do("send", _CLIENT_HELLO, "a ClientHello"),),
}


def _plain() -> Iterator[Story]:
    for version in range(3):
        yield Story(f"PLAIN v{version}", _one_by_one(_do("plain_login", version=version), _SERVED))
        wrong = _do("plain_login", password="wrong", version=version)
        yield Story(f"PLAIN v{version} with a wrong password", _one_by_one(wrong, _SERVED))
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
        yield Story(f"PLAIN {title}", _one_by_one(_HANDSHAKE, _do("authenticate", token, title), _SERVED))
    for more, password in (("", "alice-secret"), (" with a wrong password", "wrong")):
        bare = _do("token", f"\0alice\0{password}".encode(), "a bare token of PLAIN")
        yield Story(f"PLAIN in bare tokens{more}", _one_by_one(_do("handshake", "PLAIN", 0), bare, _SERVED))


def _scram(mechanism: str) -> Iterator[Story]:
    handshake, bare = _do("handshake", mechanism), client_first_bare("alice")

    def served(**how: str) -> Tell:
        return _one_by_one(_do("scram_login", mechanism, **how), _SERVED)

    def first(message: str | bytes, says: str = "") -> Tell:
        return _one_by_one(handshake, _do("authenticate", message, says or message))

    def final(change: Callable[[str], str], says: str, header: str = "n,,", **how: Any) -> Tell:
        """``change`` is given the right last message, or one that is made by ``how``, as ``client_final`` has it."""

        def tell(talk: Conversation) -> None:
            talk.handshake(mechanism)
            said, answer = talk.scram_first(mechanism, header=header)
            right, verifier = client_final(mechanism, said, answer, USERS["alice"], **{"binding": header, **how})
            talk.authenticate(change(right), says, expects={verifier: "v=(as it should be)"})
            talk.is_served()

        return tell

    def bound(header: str, claimed: str | None = None) -> Tell:
        return final(str, "the proof", header, binding=header if claimed is None else claimed)

    def instead_of_the_proof(proof: str) -> Callable[[str], str]:
        return lambda right: right.rpartition(",p=")[0] + proof

    def bare_tokens(password: str, says: str) -> Tell:
        def tell(talk: Conversation) -> None:
            talk.handshake(mechanism, 0)
            answer = talk.token(f"n,,{bare}".encode(), "client-first").decode()
            right, verifier = client_final(mechanism, bare, answer, password)
            talk.token(right.encode(), says, {verifier: "v=(as it should be)"})
            talk.is_served()

        return tell

    first_again = _do("scram_first", mechanism)
    tells: Mapping[str, Tell] = {
        "": served(),
        "with a wrong password": served(password="wrong"),
        "with odd characters": served(name="weird,=name"),
        "with an unknown user": served(name="nobody"),
        "with an extension": served(more=",tokenauth=false"),
        "with a mandatory extension": first(f"n,,m=ext,{bare}"),
        "with an extension that nobody knows": served(more=",x=1"),
        "for a delegation token": first(f"n,,{bare},tokenauth=true"),
        "that could bind": bound("y,,"),
        "that binds": first(f"p=tls-unique,,{bare}"),
        "that binds to tls-exporter": first(f"p=tls-exporter,,{bare}"),
        "that binds to nothing": first(f"p=,,{bare}"),
        "for oneself": bound("n,a=alice,"),
        "for another": bound("n,a=bob,"),
        "that forgets what it said of binding": bound("y,,", claimed="n,,"),
        "with a binding that it did not announce": bound("n,,", claimed="p=tls-unique,,x"),
        "without a header": first(bare),
        "without a nonce": first("n,,n=alice"),
        "with an empty nonce": first("n,,n=alice,r="),
        "without a name": first(f"n,,r={NONCE}"),
        "with an empty name": first(f"n,,n=,r={NONCE}"),
        "with a name that is badly escaped": first(f"n,,n=al=ice,r={NONCE}"),
        "with nothing": first(""),
        "with what is not SCRAM": first(_CREDENTIALS),
        "that is no UTF-8": first(b"n,,n=\xff,r=a", "..."),
        "with the proof first": first(f"c=biws,r={NONCE},p=YQ=="),
        "with the first message again": _one_by_one(handshake, first_again, first_again),
        "with another nonce": final(str, "the proof for another nonce", nonce=NONCE + "another"),
        "with the nonce of the client alone": final(str, "the proof for the client's nonce", nonce=NONCE),
        "with a proof that is cut": final(lambda right: right[:-8], "most of the proof"),
        "without a proof": final(instead_of_the_proof(""), "no proof"),
        "with a proof that is no base64": final(instead_of_the_proof(",p=!"), "p=!"),
        "with a proof of one byte": final(instead_of_the_proof(",p=YQ=="), "p=YQ=="),
        "with an extension in its last message": final(
            lambda right: right.replace(",p=", ",x=1,p="), "the proof of another message"
        ),
        "with nothing last": final(lambda _: "", "nothing"),
        "with what comes after the end": _one_by_one(
            _do("scram_login", mechanism), _do("authenticate", "", "nothing"), _SERVED
        ),
        "in bare tokens": bare_tokens(USERS["alice"], "the proof"),
        "in bare tokens with a wrong password": bare_tokens("wrong", "the proof of another password"),
    }
    for title, tell in tells.items():
        yield Story(f"{mechanism} {title}", tell)


def _unlike(message: str) -> bytes:
    """A token in a message of another form."""
    return message.format(valid_token()).encode()


def _bearer(seconds: int) -> Tell:
    """Log in with a token that lives so long."""

    def tell(talk: Conversation) -> None:
        talk.handshake("OAUTHBEARER")
        talk.authenticate(bearer(valid_token(lives_seconds=seconds)), f"a token for {seconds} s")
        talk.is_served()

    return tell


def _oauthbearer() -> Iterator[Story]:
    def login(made: Callable[[], bytes], says: str) -> Tell:
        def tell(talk: Conversation) -> None:
            talk.handshake("OAUTHBEARER")
            answer = talk.authenticate(made(), says)
            if answer.error_code == 0 and answer.auth_bytes:
                talk.authenticate(b"\x01", "the client has seen the error")
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
    yield Story("OAUTHBEARER for two seconds", _one_by_one(_bearer(2), _do("wait", 2.3, "its time passes"), _SERVED))

    def bare(talk: Conversation) -> None:
        talk.handshake("OAUTHBEARER", 0)
        talk.token(bearer(valid_token()), "a token")
        talk.is_served()

    yield Story("OAUTHBEARER in bare tokens", bare)


def _announced(size: int) -> tuple[Tell, ...]:
    return (_do("send", struct.pack(">i", size) + b"\0\x11\0\x01", f"a length of {size}"),)


def _token_of(size: int) -> tuple[Tell, ...]:
    return _HANDSHAKE, _do("authenticate", b"\0alice\0" + b"x" * (size - 7), f"a token of {size}")


def _announced_token(size: int, token: bytes) -> tuple[Tell, ...]:
    return _HANDSHAKE, _frame(36, 1, struct.pack(">i", size) + token, f"a token with a length of {size}")


_LIMIT: Final = 512 * 1024

_SIZES: Final[Mapping[str, tuple[Tell, ...]]] = {
    "a frame of the limit": _announced(_LIMIT),
    "a frame beyond the limit": _announced(_LIMIT + 1),
    "a frame of 100 MiB": _announced(100 * 1024 * 1024),
    "a token below the limit": _token_of(_LIMIT - 100),
    "a token beyond the limit": _token_of(_LIMIT + 1),
    "a token that is cut": _announced_token(100, _CREDENTIALS.encode()),
    "a token that is null": _announced_token(-1, b""),
}

_SCRAM_LOGIN: Final = _do("scram_login", "SCRAM-SHA-256")
_OLD: Final = (_do("plain_login", version=1), _SECOND, _do("handshake", "PLAIN", 0))

_SESSIONS: Final[Mapping[str, tuple[Tell, ...]]] = {
    **{
        title: (_LOGIN, _SERVED, _SECOND, _do("plain_login", *account), _SERVED)
        for title, account in {
            "the same account again": ("alice", None),
            "another account": ("bob", None),
            "a wrong password": ("alice", "wrong"),
        }.items()
    },
    "another mechanism": (*_AGAIN, _SCRAM_LOGIN, _SERVED),
    "SCRAM again": (_SCRAM_LOGIN, _SERVED, _SECOND) * 2,
    "SCRAM with a wrong password": (_SCRAM_LOGIN, _SECOND, _do("scram_login", "SCRAM-SHA-256", password="wrong")),
    "OAUTHBEARER again": (_bearer(2), _SECOND, _bearer(60), _SECOND),
    "it ends": (_LOGIN, _ITS_END, _SERVED),
    "a login after its end": (_LOGIN, _ITS_END, _LOGIN, _SERVED),
    "versions after its end": (_LOGIN, _ITS_END, _versions(3)),
    "a request in the middle of another login": (*_AGAIN, _HANDSHAKE, _SERVED, _AND_THEN),
    "versions in the middle of another login": (*_AGAIN, _HANDSHAKE, _versions(3), _AND_THEN),
    "logins without a pause": (_LOGIN, _LOGIN, _LOGIN, _SERVED),
    "a token without a handshake": (*_AGAIN, _TOKEN, _SERVED),
    "a mechanism that there is not": (*_AGAIN, _do("handshake", "GSSAPI"), _SERVED),
    **{
        title: (_do("plain_login", version=version), _ITS_END, _SERVED)
        for version, title in enumerate(("SaslAuthenticate v0 knows none", "SaslAuthenticate v1"))
    },
    "a handshake v0 in the middle": (*_OLD, _SERVED),
    "a bare token in the middle": (*_OLD, _BARE_TOKEN, _SERVED),
}


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
    ports = {"PLAINTEXT": kafka.port} | {name: free_port() for name in names}
    protocols = {name: "PLAINTEXT" if name == "PLAINTEXT" else "SASL_PLAINTEXT" for name in ports}
    reauth = {"listener.name.short.connections.max.reauth.ms": str(REAUTH_MS)}
    with kafka.running(*kafka_settings(ports, kafka.port + 1, protocols, more=reauth)):
        make_users(kafka.port)
        time.sleep(1)
        return {story.title: answer for story, answer in answers(ports, STORIES, 0.3)}


def _shown(steps: list[Plain]) -> str:
    """A line for each step."""
    return "[\n  " + ",\n  ".join(json.dumps(step) for step in steps) + "\n]"


if __name__ == "__main__":
    rewrite(ANSWERS, captured, _shown)
