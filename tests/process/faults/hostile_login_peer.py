"""Hostile clients, with an account or without, to be run as a module with FACTS KIND COUNT SEED.

FACTS is JSON: ``ports`` by listener, of which ``native`` is one and speaks ``protocol``, the file of the ``authority``,
``user`` and ``password`` of an account, and a ``mark``, which stands in all that nobody may find in a log.

``failing`` tries to log in, by every mechanism, on both wires, many connections at a time. ``logins`` sends exchanges
whose frames are changed, left out, doubled or in another order, and bytes of TLS that no handshake has. ``wrapped``
logs in by TLS, and sends ordinary requests with bytes changed, on both wires. It prints a line of JSON at the end.
"""

import contextlib
import json
import random
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from seglog_protocol.frames import encode_frame
from seglog_protocol.kafka import messages
from seglog_protocol.messages import PROTOCOL_NAME
from tests.interop.sasl_client import unsecured_token
from tests.process.faults import hostile_kafka_peer, hostile_peer
from tests.process.faults.logins import (
    KAFKA,
    MECHANISMS,
    NATIVE,
    SecureKafkaPeer,
    SecureNativePeer,
    Talk,
    bearer,
    failing,
    kafka_frame,
    plain,
    received_frame,
    scram,
)
from tests.processes import PATIENCE_SECONDS
from tests.tls_records import HANDSHAKE, RecordClient
from tests.unit.protocol.kafka.mutations import mutated

TOGETHER: Final = 200
"""Connections that try to log in at a time."""

SILENCE_SECONDS: Final = 0.02
"""After which a peer does not wait for an answer any more that may never come."""

WITH_TLS: Final = frozenset({"native", "SASL_SSL", "SSL"})


class Facts:
    """What is attacked."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.ports: dict[str, int] = told["ports"]
        self.user, self.password = told["user"], told["password"]
        self.mark: str = told["mark"]
        self._authority = told["authority"]
        self.protocol: str = told["protocol"]
        self.answers: Counter[str] = Counter()
        self.connections = 0

    def context(self, **versions: ssl.TLSVersion) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._authority)
        for name, version in versions.items():
            setattr(context, name, version)
        return context

    def has_tls(self, listener: str) -> bool:
        return listener in WITH_TLS and (listener != "native" or self.protocol.endswith("SSL"))

    def connect(self, listener: str) -> socket.socket:
        self.connections += 1
        sock = socket.create_connection(("127.0.0.1", self.ports[listener]), PATIENCE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


# --- Failed logins ----------------------------------------------------------------------------------------------------


def send_failing(facts: Facts, count: int, dice: random.Random) -> int:
    """Logins that fail, TOGETHER at a time, at the native port and that of Kafka's SASL_PLAINTEXT."""
    places: list[tuple[str, Talk]] = [("native", NATIVE), ("SASL_PLAINTEXT", KAFKA)]
    sent = 0
    while sent < count:
        trying = []
        for _ in range(min(TOGETHER, count - sent)):
            mechanism = dice.choice(MECHANISMS)
            listener, talk = dice.choice(places)
            tokens = failing(mechanism, facts.mark, dice)
            sock = facts.connect(listener)
            if facts.has_tls(listener):
                sock = facts.context().wrap_socket(sock, server_hostname="localhost")
            sock.sendall(talk.opening(mechanism) + talk.step(mechanism, next(tokens)))
            trying.append((sock, talk, mechanism, tokens))
        sent += len(trying)
        second = []
        for sock, talk, mechanism, tokens in trying:
            if talk is KAFKA and received_frame(sock) is None:  # of the handshake: on a busy machine its time is over
                facts.answers["closed"] += 1
                sock.close()
                continue
            answer = _answered(facts, sock, talk)
            if answer is not None:
                with contextlib.suppress(ConnectionError):  # as above, which the answer tells
                    sock.sendall(talk.step(mechanism, tokens.send(answer)))
                second.append((sock, talk))
        for sock, talk in second:
            assert _answered(facts, sock, talk) is None, "it was let in"
    return sent


def _answered(facts: Facts, sock: socket.socket, talk: Talk) -> bytes | None:
    """The broker's token; None if the login has failed, and then the connection is closed."""
    frame = received_frame(sock)
    if frame is not None:
        error, token = talk.answer(frame)
        if not error:
            return token
        facts.answers[error] += 1
        assert received_frame(sock) is None, "it is not closed"
    else:
        facts.answers["closed"] += 1
    sock.close()
    return None


# --- Changed logins ---------------------------------------------------------------------------------------------------


@cache
def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def story(facts: Facts, talk: Talk, dice: random.Random) -> list[bytes]:
    """The frames of a login, without the broker's: of those that need them, some made up."""
    mechanism = dice.choice(MECHANISMS)
    made: dict[str, Callable[[], Any]] = {
        "PLAIN": lambda: plain(facts.user, dice.choice([facts.password, facts.mark])),
        "OAUTHBEARER": lambda: bearer(unsecured_token(sub=facts.user, exp=dice.choice([1, 2**40]))),
    }
    tokens = made.get(mechanism, lambda: scram(mechanism, facts.user, None))()
    steps = [next(tokens)]
    with contextlib.suppress(StopIteration):
        steps.append(tokens.send(b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"))
    steps = dice.choice([steps, steps, steps[::-1], steps * 2, steps + steps[:1] * 12])
    frames = [talk.opening(mechanism)] if talk is KAFKA else []
    frames += [talk.step(dice.choice([mechanism] * 5 + [*MECHANISMS, "GSSAPI", ""]), step) for step in steps]
    if talk is KAFKA:
        first = kafka_frame(messages.ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
        others = [first, kafka_frame(messages.MetadataRequest(topics=None), 12), frames[0]]
    else:
        hello = encode_frame({"id": 1, "v": 1, "api": "hello", "protocol": PROTOCOL_NAME})
        others = [hello, encode_frame({"id": 2, "v": 1, "api": "metrics"}), frames[0]]
    for _ in range(dice.choice([0, 0, 1, 3])):
        frames.insert(dice.randrange(len(frames) + 1), dice.choice(others))
    return frames


def changed(frames: list[bytes], dice: random.Random) -> list[bytes]:
    """Some of them changed, cut, doubled, left out, in another order, or of another length than they say."""
    match dice.randrange(8):
        case 0:
            dice.shuffle(frames)
        case 1:
            frames.insert(dice.randrange(len(frames) + 1), dice.choice(frames))
        case 2:
            del frames[dice.randrange(len(frames))]
        case 3:
            at = dice.randrange(len(frames))
            frames[at] = frames[at][: dice.randrange(len(frames[at]))]
        case 4:
            at = dice.randrange(len(frames))
            size = dice.choice([0, 3, len(frames[at]), 524_288, 524_289, 2**31 - 1, 2**32 - 1])
            frames[at] = struct.pack(">I", size) + frames[at][4:]
        case _:
            at = dice.randrange(len(frames))
            frames[at] = frames[at][:4] + mutated(dice, frames[at][4:])
    return frames


def send_logins(facts: Facts, count: int, dice: random.Random) -> int:
    """So many frames at least, of changed logins for the most part."""
    sent = 0
    while sent < count:
        listener = dice.choice(list(facts.ports))
        what = dice.random()
        if what < 0.7:
            sent += _tell(facts, listener, changed(story(facts, _talk_of(listener, dice), dice), dice), dice)
        elif what < 0.9:
            sent += _tell_raw(facts, listener, dice)
        else:
            sent += _tell_records(facts, dice)
    return count  # the last login may have had some more


def _talk_of(listener: str, dice: random.Random) -> Talk:
    """Most often that of the listener."""
    right, wrong = (NATIVE, KAFKA) if listener == "native" else (KAFKA, NATIVE)
    return dice.choice([right] * 9 + [wrong])


def _tell(facts: Facts, listener: str, frames: list[bytes], dice: random.Random) -> int:
    """Send frames, within TLS where the listener has it, and take what comes."""
    sock = facts.connect(listener)
    with sock, contextlib.suppress(OSError):
        if facts.has_tls(listener) and dice.random() < 0.95:
            sock = facts.context().wrap_socket(sock, server_hostname="localhost")
        sock.sendall(b"".join(frames))
        _take(facts, sock)
    sock.close()
    return len(frames)


def _tell_raw(facts: Facts, listener: str, dice: random.Random) -> int:
    """Bytes of TLS, changed or not, and such as TLS has not at all; on listeners with it and without."""
    hello = client_hello()
    parts = [
        dice.choice([hello, mutated(dice, hello), hello[: dice.randrange(len(hello))]]),
        dice.choice(
            [b"", hello, b"\x14\x03\x03\0\1\1" * 50, b"\x15\x03\x01\0\2\1\0", dice.randbytes(40), bytes(20_000)]
        ),
    ]
    sock = facts.connect(listener)
    with sock, contextlib.suppress(OSError):
        sock.sendall(b"".join(parts))
        _take(facts, sock)
    return len(parts)


def _tell_records(facts: Facts, dice: random.Random) -> int:
    """Behind a good handshake: records that are changed, of another kind, or with nothing but new keys."""
    listener = dice.choice([name for name in facts.ports if facts.has_tls(name)])
    sock = facts.connect(listener)
    count = 20
    client = None
    try:
        client = RecordClient(sock, facts.context())
        client.send(b"".join([_odd_record(client, dice) for _ in range(count)]))
        _take(facts, client.tls)
    except OSError:
        pass
    finally:
        if client is not None:
            client.close()
        sock.close()
    return count


def _odd_record(client: RecordClient, dice: random.Random) -> bytes:
    match dice.randrange(5):
        case 0:
            return client.record(dice.randbytes(30), dice.choice([20, 21, HANDSHAKE, 24]))
        case 1:
            return mutated(dice, client.record(bytes(50)))
        case 2:
            return client.record(dice.randbytes(dice.choice([0, 1, 100])))
        case _:
            return client.key_update(asks=dice.random() < 0.5)


def _take(facts: Facts, sock: socket.socket) -> None:
    """Read until the broker closes the connection, or says nothing."""
    sock.settimeout(SILENCE_SECONDS)
    try:
        while data := sock.recv(1 << 16):
            facts.answers["bytes"] += len(data)
    except TimeoutError:
        facts.answers["silence"] += 1
    else:
        facts.answers["closed"] += 1


# --- Changed requests within TLS --------------------------------------------------------------------------------------


def send_wrapped(facts: Facts, count: int, dice: random.Random) -> int:
    """Changed requests of somebody who has logged in, half of them on each wire."""
    on_kafkas = SecureKafkaPeer(facts.ports["SASL_SSL"], facts.context(), facts.user, facts.password)
    sent = hostile_kafka_peer.send_mutated(on_kafkas, count // 2, dice)
    on_kafkas.close()
    native = SecureNativePeer(facts.ports["native"], facts.context(), facts.user, facts.password)
    sent += hostile_peer.send_mutated(native, count - sent, dice)
    native.close()
    for peer in (on_kafkas, native):
        facts.connections += peer.connections
        facts.answers.update(peer.answers)
    return sent


KINDS: Final = {"failing": send_failing, "logins": send_logins, "wrapped": send_wrapped}


def main() -> None:
    """Run as the first lines say."""
    facts = Facts(json.loads(sys.argv[1]))
    kind, count, seed = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sent = KINDS[kind](facts, count, random.Random(seed))
    told = {"sent": sent, "connections": facts.connections, "answers": facts.answers}
    print(json.dumps(told | {"largest": 0, "received": facts.answers["bytes"]}))


if __name__ == "__main__":
    main()
