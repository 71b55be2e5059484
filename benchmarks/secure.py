"""What TLS and accounts cost: the same appends and fetches on listeners with and without them, beside a real Kafka's.

Its Kafka is measured where ``--beside-kafka`` says how to run one. Both keep a connection open: a login and a
handshake are rows of their own.
"""

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import seglog
from benchmarks.batches import batch_of, dated
from benchmarks.harness import MIB, Bench, Benchmark, Row, take_turns
from benchmarks.kafka_door import Door
from benchmarks.peers.cases import APPENDS, FETCHES
from benchmarks.peers.jobs import LoadProcess, Pace, load_process
from benchmarks.peers.results import Measure
from benchmarks.peers.servers import PeerAbsentError, free_ports, script_server
from benchmarks.peers.sides import Kafka, KafkaServer
from benchmarks.processes import daemon
from benchmarks.raw_client import open_socket
from seglog_broker.security.trial_certificates import make_certificates
from seglog_protocol.kafka import messages, write_request

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_SSL")
_CASES: Final = tuple(case for case in APPENDS if case.group != "disk")
"""Of acks ``disk`` TLS is a small part; and this Kafka does not sync."""

_BATCH_BYTES: Final = 16 * 1024
_USER: Final = "bench"
_PASSWORD: Final = "correct horse battery staple"
_ITERATIONS: Final = 4096


class Certificates(NamedTuple):
    """Files in PEM."""

    authority: Path
    server: Path


def _certificates(directory: Path) -> Certificates:
    make_certificates(directory, [], [])
    return Certificates(directory / "authority.pem", directory / "server.pem")


def _login() -> list[str]:
    """The requests of a login by PLAIN."""
    token = f"\0{_USER}\0{_PASSWORD}".encode()
    requests = (
        (messages.SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (messages.SaslAuthenticateRequest(auth_bytes=token), 1),
    )
    return [b64encode(b"".join(write_request(1, "bench", request, version))).decode() for request, version in requests]


def _access(protocol: str, port: int, certificates: Certificates) -> dict[str, Any]:
    access: dict[str, Any] = {"port": port}
    if "SSL" in protocol:
        access["authority"] = str(certificates.authority)
    if "SASL" in protocol:
        access["login"] = _login()
    return access


def _add_account(port: int) -> None:
    """By the native listener, whose clients administer."""
    with seglog.connect(f"127.0.0.1:{port}") as client:
        client.create_user(_USER, _PASSWORD, iterations=_ITERATIONS)


Sides = Mapping[str, Kafka[Any]]
"""A server's listeners by their protocol."""


def _sides(name: str, server: KafkaServer, load: LoadProcess, ports: Mapping[str, int], files: Certificates) -> Sides:
    return {
        protocol: Kafka(f"{name}, {protocol}", server, load, access=_access(protocol, port, files))
        for protocol, port in ports.items()
    }


def _seglog(bench: Bench, load: LoadProcess, files: Certificates, stack: ExitStack) -> Sides:
    ports = {protocol: free_ports() for protocol in PROTOCOLS}
    listeners = ",".join(f"{protocol}://127.0.0.1:{port}" for protocol, port in ports.items())
    settings = (f"listeners={listeners}", f"ssl.keystore.location={files.server}", "super.users=User:ANONYMOUS")
    running = stack.enter_context(daemon(bench, *(word for each in settings for word in ("--set", each))))
    _add_account(running.port)
    return _sides("seglog", Door(running, ports["PLAINTEXT"]), load, ports, files)


def _kafka(bench: Bench, load: LoadProcess, files: Certificates, stack: ExitStack) -> Sides:
    """Raises PeerAbsentError where there is none."""
    if bench.kafka_scripts is None:
        raise PeerAbsentError("no --beside-kafka")
    ports = {protocol: free_ports() for protocol in PROTOCOLS[1:]}
    spoken = ",".join(f"{protocol}:{protocol}" for protocol in PROTOCOLS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    directory = stack.enter_context(bench.fresh_directory()) / "kafka"
    plain = free_ports()  # the next one is its controller's
    addresses = ",".join(f"{protocol}://127.0.0.1:{port}" for protocol, port in {"PLAINTEXT": plain, **ports}.items())
    settings = (
        f"listeners={addresses},CONTROLLER://127.0.0.1:{plain + 1}",
        f"listener.security.protocol.map={spoken},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={files.server}",
        "sasl.enabled.mechanisms=PLAIN",
        f'listener.name.sasl_ssl.plain.sasl.jaas.config={module} user_{_USER}="{_PASSWORD}";',
    )
    server = stack.enter_context(
        script_server(bench.kafka_scripts / "kafka" / "kafka", directory, settings, needs=("java",), port=plain)
    )
    return _sides("Kafka", server, load, {"PLAINTEXT": plain, **ports}, files)


def _run(bench: Bench) -> Iterator[Row]:
    pace, warm = Pace(bench), Pace(bench)
    warm.seconds = bench.pick(5.0, 0.05)  # Java compiles what runs often
    with ExitStack() as stack:
        files = _certificates(stack.enter_context(bench.fresh_directory()))
        load = stack.enter_context(load_process("benchmarks.peers.load"))
        servers = {"seglog": _seglog(bench, load, files, stack)}
        try:
            servers["Kafka"] = _kafka(bench, load, files, stack)
        except PeerAbsentError as absent:
            yield Row("Kafka beside", "", note=str(absent))
        for sides in servers.values():
            for side in sides.values():
                side.append(APPENDS[1], warm)
        for case in _CASES:
            unit = "MB/s" if case.batch_bytes else "appends/s"
            actions = {
                (name, p): partial(sides[p].append, case, pace) for name, sides in servers.items() for p in PROTOCOLS
            }
            yield from _rows(bench, case.name, unit, actions)
        batch, records = batch_of(_BATCH_BYTES)
        for sides in servers.values():
            sides["PLAINTEXT"].fill(dated(batch, bench.pick(256, 16) * MIB // len(batch)))
        for fetch in FETCHES:
            reads = {
                (name, p): sides[p].fetches(fetch, pace, len(batch), records)
                for name, sides in servers.items()
                for p in PROTOCOLS
            }
            yield from _rows(bench, fetch.name, "MB/s", reads)
        for protocol in PROTOCOLS[1:]:
            logins = {name: partial(_logins, sides[protocol], pace) for name, sides in servers.items()}
            found = dict(zip(logins, take_turns(bench.rounds, *logins.values()), strict=True))
            yield Row(f"connections made, {protocol}", "a second", found["seglog"], found.get("Kafka", ()), "Kafka")


def _rows(
    bench: Bench, name: str, unit: str, actions: Mapping[tuple[str, str], Callable[[], Measure]]
) -> Iterator[Row]:
    """Each protocol beside PLAINTEXT, and beside the Kafka that speaks the same; of ours the processor time, too."""
    measured = dict(zip(actions, take_turns(bench.rounds, *actions.values()), strict=True))
    values = {key: [one.value for one in found] for key, found in measured.items()}
    for protocol in PROTOCOLS:
        ours = values["seglog", protocol]
        if protocol != PROTOCOLS[0]:
            yield Row(f"{name}, {protocol}", unit, ours, values["seglog", PROTOCOLS[0]], "PLAINTEXT")
            times, without = (
                [one.server_cpu_us for one in measured["seglog", spoken] if one.server_cpu_us is not None]
                for spoken in (protocol, PROTOCOLS[0])
            )
            yield Row(f"{name}, {protocol}, CPU", "µs", times, without, "PLAINTEXT")
        if ("Kafka", protocol) in values:
            yield Row(f"{name}, {protocol}", unit, ours, values["Kafka", protocol], "Kafka")


def _logins(side: Kafka[Any], pace: Pace) -> float:
    """Connections a second, made one after the other: handshake, login, and one request."""
    access = side.access
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < pace.seconds:
        greetings = [b64decode(text) for text in access.get("login", ())]
        open_socket(access["port"], greetings, access.get("authority", "")).close()
        count += 1
    return count / (time.perf_counter() - began)


BENCHMARK: Final = Benchmark("tls", "TLS and accounts on Kafka's wire, beside none", "", _run, 1800)
