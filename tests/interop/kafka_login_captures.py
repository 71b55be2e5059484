"""How Kafka's clients log in, frame by frame: what each has sent to a real Kafka, kept so that anyone can be sent it.

``python -m tests.interop.kafka_login_captures`` lets the clients log in once more and writes
``kafka_login_captures.json``.
"""

import json
import struct
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.interop.client_programs import KAFKA_CLIENTS, client_steps
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import kafka_settings
from tests.interop.peer import Kafka, kafka_script
from tests.interop.sasl_client import MECHANISMS, unsecured_token
from tests.interop.sasl_conversation import USERS
from tests.process.faults.links import Link
from tests.processes import free_port

CAPTURES: Final = Path(__file__).with_name("kafka_login_captures.json")

HANDSHAKE, AUTHENTICATE = 17, 36
"""Api keys."""

_LONG_SECONDS: Final = 2_000_000_000
"""How long tokens live, so that the captures do."""


class Tap(Link):
    """Keeps what clients send: a list of bytes for each connection."""

    def __init__(self, port: int) -> None:
        self._sent: defaultdict[int, bytearray] = defaultdict(bytearray)
        super().__init__(port)

    @property
    def sent(self) -> list[bytearray]:
        """By connection."""
        return [kept for _, kept in sorted(self._sent.items())]

    def passing(self, connection: int, data: bytes, *, is_reply: bool) -> bytes:
        """See Link."""
        if not is_reply:
            self._sent[connection] += data
        return data


def frames(sent: bytes | bytearray) -> list[bytes]:
    """What follows each length, of whole frames."""
    found = []
    while len(sent) >= 4:
        [size] = struct.unpack_from(">i", sent)
        found.append(bytes(sent[4 : 4 + size]))
        sent = sent[4 + size :]
    return found


def api_of(frame: bytes) -> tuple[int, int]:
    """Api key and version."""
    api, version = struct.unpack_from(">hh", frame)
    return api, version


def login_of(sent: list[bytearray]) -> list[bytes]:
    """The frames of a first login, and the first behind it, if there is one."""
    for each in sent:
        found = frames(each)
        tokens = [at for at, frame in enumerate(found) if api_of(frame)[0] == AUTHENTICATE]
        if tokens:
            return found[: tokens[-1] + 2]
    raise AssertionError(f"nobody has logged in: {[len(each) for each in sent]}")


def captured(folder: Path) -> Mapping[str, Mapping[str, list[str]]]:
    """By client and mechanism the frames that it sends to a real Kafka whose data are below ``folder``, in hex."""
    kafka = Kafka(kafka_script(), folder / "kafka")
    ports = {"PLAINTEXT": kafka.port, "SASL": free_port()}
    protocols = {"PLAINTEXT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT"}
    with kafka.running(*kafka_settings(ports, kafka.port + 1, protocols)):
        make_users(kafka.port)
        return {
            name: {mechanism: _login(name, mechanism, ports["SASL"]) for mechanism in MECHANISMS}
            for name in KAFKA_CLIENTS
        }


def _login(name: str, mechanism: str, port: int) -> list[str]:
    told = {"PROTOCOL": "SASL_PLAINTEXT", "MECHANISM": mechanism, "USER": "alice", "PASSWORD": USERS["alice"]}
    if mechanism == "OAUTHBEARER":
        del told["PASSWORD"]
        told |= {"TOKEN": unsecured_token(sub="alice", iat=1, exp=4_000_000_000), "LIVES": str(_LONG_SECONDS)}
    with closing(Tap(port)) as tap:
        assert client_steps(name, f"127.0.0.1:{tap.port}", "t", "admin", **told) == {"admin": ""}
        return [frame.hex() for frame in login_of(tap.sent)]


def written(found: Mapping[str, Mapping[str, list[str]]]) -> str:
    """The text of the file: a line for each frame."""
    return json.dumps(found, indent=1) + "\n"


def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as folder:
        CAPTURES.write_text(written(captured(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
