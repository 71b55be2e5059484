"""Requests over HTTP that were changed at random: each gets an answer or an end, and the broker goes on."""

import http.client
import random
import re
import socket
from pathlib import Path
from typing import Final

import pytest

from tests.processes import daemon
from tests.support import soak_scaled, soak_seed

SEEDS: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost:9193\r\nAccept-Encoding: deflate;q=0.1,gzip;q=0.5\r\n\r\n",
    b"GET /metrics?name[]=seglog_topics&name[]=seglog_problems HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://localhost/readyz HTTP/1.0\r\nAuthorization: Bearer abc\r\n\r\n",
    b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n1\r\nh\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 0\r\n\r\n",
)

PIECES: Final = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\r\n\r\n", b"%00", b"//", b"[", b"]", b"?", b"&name[]=", b"\xff" * 9),
    *(b"Content-Length: 99999999999999999999\r\n", b"Host: y\r\n", b"HTTP/1.1", b"HTTP/9.9", b"a:" * 500, b";q=nan"),
    *(b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Accept: ;;;,,=\r\n", b"x" * 9_000),
)

POSSIBLE: Final = {b"200", b"400", b"404", b"405", b"408", b"413", b"431", b"501", b"505"}


def changed(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[place:place] = rng.choice(PIECES)
            case 1:
                del data[place : place + rng.randint(1, 10)]
            case 2:
                data[place : place + 1] = rng.randbytes(1)
            case 3:
                data[place:] = data[place:] + data[: rng.randint(0, 60)]
            case _:
                data[place:] = rng.choice(SEEDS)[rng.randrange(40) :]
    return bytes(data)


@pytest.mark.parametrize(
    "count", [pytest.param(200, id="some"), pytest.param(soak_scaled(20_000), marks=pytest.mark.soak, id="many")]
)
def test_whatever_comes_is_answered_or_ends_and_the_next_is_served(count: int, tmp_path: Path) -> None:
    seed = soak_seed()
    rng = random.Random(seed)
    with daemon(tmp_path / "data", "--http", "127.0.0.1:0") as running:
        for number in range(count):
            data = changed(rng)
            answer = b""
            with socket.create_connection(("127.0.0.1", running.http_port), timeout=60) as client:
                try:
                    for part in (data[:20], data[20:]):
                        client.sendall(part)
                    client.shutdown(socket.SHUT_WR)
                    while received := client.recv(65_536):
                        answer += received
                except (ConnectionError, BrokenPipeError):
                    pass  # it was ended while more was sent
            statuses = set(re.findall(rb"HTTP/1\.1 (\d{3}) ", answer))
            assert statuses <= POSSIBLE, (seed, number, data, answer)
        connection = http.client.HTTPConnection("127.0.0.1", running.http_port, timeout=60)
        connection.request("GET", "/livez")
        assert connection.getresponse().read() == b"ok\n"
        connection.close()
        assert "crashed" not in running.log_text()
