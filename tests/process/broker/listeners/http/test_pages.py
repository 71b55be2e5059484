"""Health and metrics over HTTP, asked for by real clients of a real daemon."""

import gzip
import http.client
import json
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_metrics

import seglog
from seglog_broker.listeners.http.wire import HEAD_BYTES_MAX
from seglog_broker.security.trial_certificates import AUTHORITY, SERVER
from seglog_broker.security.trial_certificates import main as make_certificates
from seglog_protocol.kafka import read_response, write_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.messages import ApiVersionsRequest, ApiVersionsResponse
from tests.processes import Daemon, daemon, wait_until
from tests.support import each_case

HTTP = ("--set", "seglog.http.listen=127.0.0.1:0")
TOKEN = "a-token-that-nobody-guesses-0123"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("http") / "data", *HTTP) as started:
        yield started


class Got:
    """An answer, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


def get(port: int, path: str, method: str = "GET", **headers: str) -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        return Got(connection.getresponse())
    finally:
        connection.close()


def raw(port: int, data: bytes) -> bytes:
    """Everything that comes back until the broker closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(data)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


# --- Pages ------------------------------------------------------------------------------------------------------------


def test_it_lives_and_is_ready(served: Daemon) -> None:
    assert (get(served.http_port, "/livez").status, get(served.http_port, "/livez").body) == (200, b"ok\n")
    assert get(served.http_port, "/readyz").json() == {"status": "ready"}


def test_health_is_what_ping_tells(served: Daemon) -> None:
    told = get(served.http_port, "/healthz")
    with seglog.connect(served.address) as client:
        broker = client.ping()
    assert (told.status, told.headers["content-type"]) == (200, "application/json")
    health = told.json()
    assert (health["status"], health["problems"]) == ("ok", list(broker.problems))
    assert health["broker"] == broker.broker


def test_metrics_are_what_prometheus_reads_in_both_of_its_formats(served: Daemon) -> None:
    with seglog.connect(served.address) as client:
        client.create_topic("read", partitions=3)
    for accept, kind, parse in (
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", plain_metrics),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text", open_metrics),
    ):
        page = get(served.http_port, "/metrics", Accept=accept)
        assert page.headers["content-type"].startswith(kind)
        families = {family.name: family for family in parse(page.text)}
        assert len(families) > 40
        assert next(iter(families["seglog_topics"].samples)).value >= 1
        assert families["seglog_fsyncs"].type == "counter"
        described = [line for line in page.text.splitlines() if line.startswith("# TYPE ")]
        assert len(described) == len(set(described)), "what describes a family stands there once"


def test_metrics_are_compressed_for_whoever_takes_it_and_for_nobody_else(served: Daemon) -> None:
    """Who takes it: ``tests/unit/broker/listeners/http/test_exposition.py``."""
    accepting = {"Accept-Encoding": "gzip"}
    plain, page = get(served.http_port, "/metrics"), get(served.http_port, "/metrics", **accepting)
    assert "content-encoding" not in plain.headers
    assert page.headers["content-encoding"] == "gzip"
    names = [family.name for family in plain_metrics(gzip.decompress(page.body).decode())]
    assert names == [family.name for family in plain_metrics(plain.text)]
    head = get(served.http_port, "/metrics", "HEAD", **accepting)
    assert (head.headers["content-encoding"], head.body) == ("gzip", b"")
    assert "content-encoding" not in get(served.http_port, "/healthz", **accepting).headers


def test_requests_for_pages_are_counted_themselves(served: Daemon) -> None:
    def counted(path: str) -> float:
        page = get(served.http_port, "/metrics?name[]=seglog_requests_total").text
        found = [
            sample.value
            for family in plain_metrics(page)
            for sample in family.samples
            if sample.labels == {"listener": "http", "api": path}
        ]
        return sum(found)

    before = counted("/livez"), counted("other")
    get(served.http_port, "/livez")
    get(served.http_port, "/some/path")
    get(served.http_port, "/another")
    assert (counted("/livez"), counted("other")) == (before[0] + 1, before[1] + 2)


def test_families_may_be_chosen_by_name(served: Daemon) -> None:
    page = get(served.http_port, "/metrics?name[]=seglog_topics&name[]=seglog_fsyncs_total").text
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")]
    assert names == ["seglog_fsyncs_total", "seglog_topics"]
    for query, named in (("name[]=seglog_topicz", "seglog_topicz"), ("x=1", "'x'")):
        wrong = get(served.http_port, f"/metrics?{query}")
        assert (wrong.status, named in wrong.text) == (400, True)
    assert get(served.http_port, "/metrics?" + "&".join(["name[]=seglog_topics"] * 201)).status == 400


@each_case("path", ["/livez", "/readyz", "/healthz", "/metrics", "/nowhere"])
def test_head_has_the_headers_alone(served: Daemon, path: str) -> None:
    whole, head = get(served.http_port, path), get(served.http_port, path, "HEAD")
    assert (head.status, head.body) == (whole.status, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]


def test_a_connection_serves_one_request_after_the_other_also_of_those_that_come_together(served: Daemon) -> None:
    one = b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n"
    paths = [b"/livez", b"/metrics", b"/nowhere", b"/healthz", b"/livez"]
    asked = b"".join(one % (path, b"") for path in paths) + one % (b"/livez", b"Connection: close\r\n")
    answer = raw(served.http_port, asked)
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", answer)
    assert statuses == [b"200", b"200", b"404", b"200", b"200", b"200"]
    assert answer.endswith(b"ok\n")


def test_a_client_of_http_1_0_gets_its_answer_and_the_end_of_the_connection(served: Daemon) -> None:
    head, _, body = raw(served.http_port, b"GET /metrics HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert any(plain_metrics(body.decode()))


# --- Bad input --------------------------------------------------------------------------------------------------------

HOST = b"Host: x\r\n"


@each_case(
    ("data", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /livez HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET /li\x00vez HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://[/livez HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET  HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        *((data, 400) for data in (b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", bytes(64), b"\r\n\r\n\x00")),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b" folded\r\n: x\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"A : b\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello", 413),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /livez HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}", 405),
        (b"CONNECT example.com:443 HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"X: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * HEAD_BYTES_MAX * 20, 431),
        (b"GET /livez HTTP/1.1\r\n" + HOST + b"a:\r\n" * HEAD_BYTES_MAX, 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /livez HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET /livez HTTP/0.9\r\n\r\n", 505),
        (b"GET /livez\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nX'\": x\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_for_a_page_is_told_so_and_ends_the_connection(
    served: Daemon, data: bytes, status: int
) -> None:
    answer = raw(served.http_port, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"\r\nConnection: close\r\n" in answer
    assert not re.search(rb"b['\"]", answer), "no Python in what people read"
    assert get(served.http_port, "/livez").status == 200


def test_a_head_of_the_largest_size_is_taken_byte_by_byte_and_one_more_is_not(served: Daemon) -> None:
    head = b"GET /livez HTTP/1.1\r\nConnection: close\r\nHost: x\r\nX: "
    room = HEAD_BYTES_MAX - len(head) - 4
    with socket.create_connection(("127.0.0.1", served.http_port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head + b"x" * room + b"\r\n\r\n":
            client.send(bytes([byte]))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert raw(served.http_port, head + b"x" * (room + 2) + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")


def test_clients_of_other_wires_are_told_in_their_own_words(served: Daemon) -> None:
    with pytest.raises(seglog.SeglogError, match=rf"this port is for HTTP; seglog's own is {served.port}"):
        seglog.connect(f"127.0.0.1:{served.http_port}", connect_timeout=1)
    asked = b"".join(write_request(7, "librdkafka", ApiVersionsRequest(), 3))
    answer = raw(served.http_port, asked)
    _, response = read_response(18, 3, memoryview(answer)[4:])
    assert isinstance(response, ApiVersionsResponse)
    assert response.error_code == ErrorCode.LISTENER_NOT_FOUND


# --- Who may see what -------------------------------------------------------------------------------------------------


def test_a_token_is_wanted_where_there_is_one_and_read_again_at_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    configuration = tmp_path / "seglogd.toml"
    configuration.write_text(f'"seglog.http.token.file" = "{file}"\n')
    with daemon(tmp_path / "data", *HTTP, "--config", str(configuration)) as running:
        port = running.http_port
        for page in ("/metrics", "/healthz"):
            unasked = get(port, page)
            assert (unasked.status, unasked.headers["www-authenticate"]) == (401, 'Bearer realm="seglog"')
            assert get(port, page, Authorization=f"Bearer {TOKEN}").status == 200
            assert get(port, page, Authorization=f"bearer  {TOKEN}").status == 200
            for wrong in (f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", TOKEN):
                refused = get(port, page, Authorization=wrong)
                assert refused.status == 401
                assert TOKEN not in refused.text
        for page in ("/livez", "/readyz"):
            assert get(port, page).status == 200
        assert running.process is not None
        other = TOKEN[::-1]
        file.write_text(other)
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: get(port, "/metrics", Authorization=f"Bearer {other}").status == 200, "the new token")
        assert get(port, "/metrics", Authorization=f"Bearer {TOKEN}").status == 401
        file.write_text("short")
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration_not_reloaded" in running.log_text(), "the refusal of a bad token")
        assert get(port, "/metrics", Authorization=f"Bearer {other}").status == 200
        unwell = get(port, "/healthz", Authorization=f"Bearer {other}")
        assert unwell.status == 503
        assert "the configuration was not reloaded" in unwell.text
        assert "a token has 16 characters or more" in unwell.text
        log = running.log_text()
        assert "authentication_failed" in log
        asked = "/metrics?name[]=seglog_authentication_failures_total"
        counted = get(port, asked, Authorization=f"Bearer {other}").text
        [failed] = [float(line.split()[-1]) for line in counted.splitlines() if '"BEARER"' in line]
        assert failed >= 10
        assert TOKEN not in log
        assert other not in log


def test_a_token_is_read_again_where_there_is_no_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with daemon(tmp_path / "data", *HTTP, "--set", f"seglog.http.token.file={file}") as running:
        assert running.process is not None
        other = TOKEN[::-1]
        file.write_text(other)
        running.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: get(running.http_port, "/metrics", Authorization=f"Bearer {other}").status == 200, "the new token"
        )
        assert running.process.poll() is None


def test_without_a_token_other_machines_see_whether_it_lives_and_no_more(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", "--set", "seglog.http.listen=0.0.0.0:0") as running:
        for page in ("/livez", "/readyz"):
            assert get(running.http_port, page).status == 200
        for page in ("/metrics", "/healthz"):
            refused = get(running.http_port, page)
            assert (refused.status, "seglog.http.token.file" in refused.text) == (403, True)
            assert "seglog.http.listen is an address that other machines reach" in refused.text, "it is asked from here"
        assert "nothing says who may see /metrics and /healthz" in running.log_text()


def test_with_tls_a_certificate_lets_a_client_see_everything_and_the_silent_keep_nobody_out(tmp_path: Path) -> None:
    """Those who begin no handshake."""
    made = tmp_path / "made"
    assert make_certificates(["--to", str(made), "--client", "scraper"]) == 0
    keys = ("seglog.http.listen=SSL://127.0.0.1:0", f"ssl.keystore.location={made / SERVER}")
    trust = (f"ssl.truststore.location={made / AUTHORITY}", "ssl.client.auth=requested", "seglog.connections.max=16")
    flags = [part for key in (*keys, *trust) for part in ("--set", key)]
    with daemon(tmp_path / "data", *flags) as running:
        silent = [socket.create_connection(("127.0.0.1", running.http_port), timeout=60) for _ in range(12)]
        context = ssl.create_default_context(cafile=str(made / AUTHORITY))
        for page in ("/livez", "/metrics"):
            connection = http.client.HTTPSConnection("127.0.0.1", running.http_port, context=context, timeout=60)
            connection.request("GET", page)
            assert Got(connection.getresponse()).status == 200
            connection.close()
            context.load_cert_chain(str(made / "client-scraper.pem"))
        for client in silent:
            client.close()
        plain = raw(running.http_port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert plain.startswith(b"HTTP/1.1 400 ")
        assert b"https://" in plain


# --- A broker that is not well ----------------------------------------------------------------------------------------


def test_problems_make_it_unhealthy_and_leave_it_alive_and_open_to_everyone_where_that_is_said(tmp_path: Path) -> None:
    settings = ("seglog.http.listen=0.0.0.0:0", "seglog.open.to.everyone=true", "seglog.disk.free.hard.bytes=1000TiB")
    with daemon(tmp_path / "data", *(part for each in settings for part in ("--set", each))) as running:
        assert get(running.http_port, "/metrics").status == 200
        unwell = get(running.http_port, "/healthz")
        health = unwell.json()
        assert (unwell.status, health["status"]) == (503, "problems")
        assert any("disk" in problem for problem in health["problems"])
        assert get(running.http_port, "/livez").status == 200
        assert get(running.http_port, "/readyz").status == 200
