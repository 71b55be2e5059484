"""Where seglog's answers to logins are not a real Kafka's, and why. Nothing else may differ."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.interop.kafka_wire import Plain
from tests.interop.sasl_client import NONCE, SCRAM


class Difference(NamedTuple):
    """Why a story goes on otherwise, and how: the steps from the one with number ``at`` to its end."""

    why: str
    at: int
    steps: tuple[tuple[str, Plain], ...]


_HIDDEN: Final = (
    "an unknown user costs and says the same as a wrong password; Kafka fails it at once, which tells who there is"
)
_RFC: Final = "RFC 5802 wants it so"
_WORDS: Final = "Kafka closes the connection without a word, so that its client tries again"
_ODD: Final = "seglog says what is wrong with a token rather than that a password is"
_WEAK: Final = "a credential that protects nothing is refused"
_ENDED: Final = "who is deleted, or gets another password, is out at once, where Kafka asks at the next login"
_BARE: Final = "another login is by SaslHandshake v1: those who know no more know nothing of sessions"

_CLOSED: Final = ("Metadata v9", "closed")
_SERVED: Final = ("Metadata v9", "answered")
_OVER: Final = ("and then", "closed")


def _response(error: int, message: str | None, token: str = "", lifetime: str | int = 0) -> Plain:
    return {"error_code": error, "error_message": message, "auth_bytes": token, "session_lifetime_ms": lifetime}


def _refused(mechanism: str) -> Plain:
    return _response(
        58, f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )


_FIRST: Final = _response(0, "", "r=(the client's nonce and more),s=(a salt),i=4096")
_VERIFIED: Final = _response(0, "", "v=(as it should be)")


def _said(token: str) -> str:
    return f"SaslAuthenticate v2: {token}"


def _scram(mechanism: str) -> Iterator[tuple[str, Difference]]:
    refused, bare = _refused(mechanism), f"n=alice,r={NONCE}"

    def with_(title: str, why: str, at: int, *steps: tuple[str, Plain]) -> tuple[str, Difference]:
        return f"{mechanism} {title}", Difference(why, at, steps)

    proof = _said("the proof")
    yield with_(
        "with an unknown user", _HIDDEN, 1, (_said(f"n,,n=nobody,r={NONCE}"), _FIRST), (proof, refused), _CLOSED
    )
    yield with_(
        "with an extension",
        "there are no delegation tokens, so nothing may be said of them",
        1,
        (_said(f"n,,{bare},tokenauth=false"), refused),
        _OVER,
    )
    yield with_("with a mandatory extension", _RFC, 1, (_said(f"n,,m=ext,{bare}"), refused))
    yield with_("that could bind", _RFC, 1, (_said(f"y,,{bare}"), _FIRST), (proof, _VERIFIED), _SERVED)
    yield with_(
        "that forgets what it said of binding", _RFC, 1, (_said(f"y,,{bare}"), _FIRST), (proof, refused), _CLOSED
    )
    yield with_("with a binding that it did not announce", _RFC, 2, (proof, refused), _CLOSED)
    for title, says in (
        ("with a proof that is cut", "most of the proof"),
        ("with a proof of one byte", "p=YQ=="),
    ):
        yield with_(title, _WORDS, 2, (_said(says), refused), _CLOSED)
    yield with_(
        "with an extension in its last message",
        "what the proof is for is what was sent, extensions and all",
        2,
        (_said("the proof of another message"), refused),
        _CLOSED,
    )


def _plain() -> Iterator[tuple[str, Difference]]:
    three = _response(58, "Invalid SASL/PLAIN response: expected 3 tokens")
    for title in ("empty", "of two parts", "of one part", "of four parts", "that is no UTF-8"):
        yield f"PLAIN {title}", Difference(_ODD, 1, ((_said(title), three), _CLOSED))


def _sessions() -> Iterator[tuple[str, Difference]]:
    again = _response(0, "", "", "at most 3 s")
    another = "Cannot change principals during re-authentication from User:alice to User:bob"
    mechanism = "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism"
    all_mechanisms = ["OAUTHBEARER", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    shown = ("SaslHandshake v1 'PLAIN'", {"error_code": 0, "mechanisms": all_mechanisms})
    login = _said("PLAIN as alice")
    nothing = {
        "throttle_time_ms": 0,
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": [],
        "cluster_authorized_operations": -2147483648,
        "error_code": 0,
    }
    told = {
        "another account": Difference(
            "names as principals are written", 5, ((_said("PLAIN as bob"), _response(58, another)), _CLOSED)
        ),
        "another mechanism": Difference(
            _WORDS, 4, ((_said(f"n,,n=alice,r={NONCE}"), _response(58, f"{mechanism} 'PLAIN'")), _OVER)
        ),
        "SCRAM with a wrong password": Difference(
            "the same words as for the first login", 6, ((_said("the proof"), _refused("SCRAM-SHA-256")),)
        ),
        "logins without a pause": Difference(
            "logins are bounded by what they cost, not by a second between two", 4, (shown, (login, again), _SERVED)
        ),
        "a mechanism that there is not": Difference(
            _WORDS,
            3,
            (("SaslHandshake v1 'GSSAPI'", {"error_code": 33, "mechanisms": all_mechanisms}), _CLOSED),
        ),
        "a handshake v0 in the middle": Difference(_BARE, 4, (("Metadata v9", nothing),)),
        "a bare token in the middle": Difference(_BARE, 4, (("a bare token of PLAIN", "closed"),)),
    }
    for title, difference in told.items():
        yield f"session: {title}", difference


def _accounts() -> Iterator[tuple[str, Difference]]:
    alter, both = "AlterUserScramCredentials v0", [[1, 4096], [2, 4096]]

    def left(*more: Plain) -> tuple[str, Plain]:
        there = [["alice", 0, "", both], ["bob", 0, "", both], ["weird,=name", 0, "", both]]
        return "all users", sorted([*there, *more])

    carol: Plain = ["carol", 0, "", [[1, 16384], [2, 4096]]]
    short = "the salted password does not have 32 bytes, as SCRAM-SHA-256 gives"
    long = f"'{'n' * 100}' cannot name an account: it has 1,000 characters, and at most 255 are possible"
    others = [["carol", 0, "", [[2, 4096]]], ["o'dd,=:\u00e4 \u2603", 0, "", [[1, 4096]]], ["two", 0, "", both]]
    told = {
        "an empty password": Difference(_WEAK, 0, ((alter, [["erin", 93, short]]), left(carol))),
        "a short password": Difference(_WEAK, 0, ((alter, [["erin", 93, short]]), left(carol))),
        "one good and one bad of one name": Difference(
            "the first of two reasons",
            0,
            (
                (alter, [["ida", 93, "Too few iterations"]]),
                left(["carol", 0, "", [[1, 16384], [2, 4096]]], ["gina", 0, "", [[1, 4096]]], ["two", 0, "", both]),
            ),
        ),
        "a long name": Difference("names have a bound", 0, ((alter, [["nnn\u2026 (1000)", 93, long]]), left(*others))),
        "it does not log in": Difference(
            _HIDDEN,
            1,
            (
                (_said(f"n,,n=used,r={NONCE}"), _FIRST),
                (_said("the proof"), _refused("SCRAM-SHA-256")),
                _CLOSED,
            ),
        ),
        "one that logs in gets another password meanwhile": Difference(
            _ENDED, 2, ((_said("the proof"), _refused("SCRAM-SHA-256")), _CLOSED)
        ),
        "one that is logged in is deleted": Difference(_ENDED, 4, (("it is deleted", "closed"),)),
    }
    for title, difference in told.items():
        yield f"accounts: {title}", difference


DIFFERENCES: Final[Mapping[str, Difference]] = {
    **dict(_plain()),
    **{title: difference for mechanism in SCRAM for title, difference in _scram(mechanism)},
    "OAUTHBEARER of another scheme": Difference(
        _WORDS, 1, ((_said("of another scheme"), _refused("OAUTHBEARER")), _CLOSED)
    ),
    **dict(_sessions()),
    **dict(_accounts()),
}
