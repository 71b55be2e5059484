"""A broker with a lease that is stopped, cut off from its place, or deposed.

A lease lasts three seconds at least, by the clock of the machine: these tests wait until one is over, and for nothing
else.
"""

import os
import select
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.lease import Lease, Terms, run
from seglog_broker.storage.io.clock import boottime_ns
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.kafka import messages
from tests.logs import batch
from tests.processes import Daemon, ended, free_port, kafka_daemon, seglogd, start_daemon, wait_until
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, produce, results
from tests.unit.broker.listeners.kafka.test_kafka_transactions import Producer
from tests.unit.broker.listeners.kafka.test_share import ACCEPT, Member

LEASE_MS = 3_000
PIPELINED = 500


def settings(place: Path, lease_ms: int = LEASE_MS) -> list[str]:
    return [f"seglog.backup.to={place}", f"seglog.backup.lease.ms={lease_ms}", "seglog.backup.lag.ms=1000"]


class Clients:
    """Connections to a daemon, which are closed at the end of a test."""

    def __init__(self) -> None:
        self._streams: list[trio.SocketStream] = []

    async def connect(self, running: Daemon) -> KafkaPeer:
        self._streams.append(await trio.open_tcp_stream("127.0.0.1", running.kafka_port))
        return KafkaPeer(self._streams[-1])

    async def close(self) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    clients = Clients()
    yield clients
    await clients.close()


def agent_of(running: Daemon) -> int:
    assert running.process is not None
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(running.process.pid)]
    [line] = [line for line in subprocess.check_output(command, text=True).splitlines() if "backup.agent" in line]
    return int(line.split()[0])


def stop(process: int) -> None:
    """Return when the process does nothing any more."""
    os.kill(process, signal.SIGSTOP)
    status = Path(f"/proc/{process}/stat")
    wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "a stop")


def outlast_the_lease() -> None:
    ends = boottime_ns() + LEASE_MS * 1_000_000
    wait_until(lambda: boottime_ns() > ends, "the end of a lease")


def taken_over(place: Path, *, directory_id: str) -> None:
    """Take the lease as a standby does, and wait for the end of the old one."""
    terms = Terms("another broker", directory_id, 1, "second.example", LEASE_MS)

    def pause(until_ns: int) -> None:
        wait_until(lambda: boottime_ns() >= until_ns, "the end of the old lease")

    run(Lease(terms, boottime_ns).acquire(take_over=True), DirectoryDestination(PosixFileSystem(), str(place)), pause)


async def in_flight(clients: Clients, running: Daemon) -> dict[str, tuple[KafkaPeer, Callable[[], Any]]]:
    """A connection for each promise that a broker makes, and what sends a request for it on that."""
    setup = await clients.connect(running)
    topic = messages.CreateTopicsRequest.CreatableTopic(name="plain", num_partitions=1, replication_factor=1)
    made = await setup.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
    ids = SimpleNamespace(id_of=lambda _name: made.topics[0].topic_id)

    member = Member(ids, await clients.connect(running), "AAAAAAAAAAAAAAAAAAAAAA")  # type: ignore[arg-type]
    heartbeat = messages.ShareGroupHeartbeatRequest(
        group_id="g", member_id=member.name, member_epoch=0, subscribed_topic_names=["plain"]
    )
    while (await setup.ask(heartbeat)).error_code:
        pass
    held: list[Any] = []
    while not held:
        await setup.ask(produce(("plain", 0, batch(b"a job"))), 9)
        member.epoch = 0
        answer = await member.peer.ask(member.fetching([0], max_wait_ms=100))
        held = [found for topic in answer.responses for part in topic.partitions for found in part.acquired_records]
    member.epoch = 1
    first, last = held[0].first_offset, held[0].last_offset

    producer = Producer(await clients.connect(running))
    await producer.begin()
    while await producer.produced(0):  # its coordinator is being made
        producer._sequences.clear()
        await producer.begin()
    end = messages.EndTxnRequest(
        transactional_id="id", producer_id=producer.id, producer_epoch=producer.epoch, committed=True
    )

    commit = messages.OffsetCommitRequest
    part = commit.OffsetCommitRequestPartition(committed_offset=1)
    offsets = commit(group_id="group", topics=[commit.OffsetCommitRequestTopic(name="plain", partitions=[part])])
    while (await setup.ask(offsets, 8)).topics[0].partitions[0].error_code:
        pass

    append = {acks: await clients.connect(running) for acks in (1, -1)}
    committer = await clients.connect(running)
    return {
        **{f"append {acks}": (peer, peer_sends(peer, acks)) for acks, peer in append.items()},
        "commit": (committer, lambda: committer.send(offsets, 8)),
        "end of a transaction": (producer.peer, lambda: producer.peer.send(end, 5)),
        "acknowledgement": (member.peer, lambda: member.send([0], [(first, last, ACCEPT)])),
    }


def peer_sends(peer: KafkaPeer, acks: int) -> Callable[[], Any]:
    return lambda: peer.send(produce(("plain", 0, batch(b"value")), acks=acks), 9)


def left(peer: KafkaPeer) -> int:
    """Receive what has left a broker that is stopped; the number of bytes."""
    descriptor = peer.stream.socket.fileno()
    while select.select([descriptor], [], [], 0)[0]:
        peer.held += os.read(descriptor, 1 << 16)
    return len(peer.held)


async def appends(clients: Clients, running: Daemon) -> int:
    """The error of an append on a new connection; -1 if that ends."""
    peer = await clients.connect(running)
    async with peer.stream:
        try:
            await peer.send(produce(("plain", 0, batch(b"value"))), 9)
            [(code, _)] = results(await peer.receive(messages.ProduceResponse))
        except (AssertionError, trio.BrokenResourceError):
            return -1
        return code


async def test_after_a_stop_longer_than_the_lease_nothing_is_promised_until_it_is_renewed(
    clients: Clients, tmp_path: Path
) -> None:
    with kafka_daemon(tmp_path / "data", *settings(tmp_path / "place")) as running:
        assert running.process is not None
        waiting = await in_flight(clients, running)
        busy = await clients.connect(running)
        frames = [busy.frame(produce(("plain", 0, batch(b"value"))), 9) for _ in range(PIPELINED)]
        await busy.stream.send_all(b"".join(frames))
        agent = agent_of(running)
        stop(agent)
        stop(running.process.pid)
        for _, send in waiting.values():
            await send()
        await busy.send(produce(("plain", 0, batch(b"value"))), 9)
        answered = left(busy)
        outlast_the_lease()
        os.kill(running.process.pid, signal.SIGCONT)
        for name, (peer, _) in waiting.items():
            assert await peer.rest() == b"", name
        assert len(await busy.rest()) == answered
        assert await appends(clients, running) == -1
        os.kill(agent, signal.SIGCONT)
        while await appends(clients, running):
            pass
        events = [line.partition('"event": "')[2].partition('"')[0] for line in running.log_text().splitlines()]
        assert [event for event in events if event.startswith("lease")] == [
            "lease_awaited",
            "lease_lapsed",
            "lease_renewed",
        ]
        assert running.stop() == 0


async def test_who_was_taken_over_while_it_was_stopped_promises_nothing_and_ends(
    clients: Clients, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    with kafka_daemon(tmp_path / "data", *settings(place)) as running:
        process = running.process
        assert process is not None
        waiting = await in_flight(clients, running)
        agent = agent_of(running)
        stop(agent)
        stop(process.pid)
        for _, send in waiting.values():
            await send()
        taken_over(place, directory_id="the standby's")
        os.kill(agent, signal.SIGCONT)
        os.kill(process.pid, signal.SIGCONT)
        for name, (peer, _) in waiting.items():
            assert await peer.rest() == b"", name
        assert process.wait() == 1
        running.process = None
        sentence = "the backup was taken over by the log directory the standby's on second.example"
        assert sentence in running.log_text()
        assert "stop_not_clean" not in running.log_text()
        again = seglogd("--data", tmp_path / "data", "--listen", "127.0.0.1:0", *running.arguments)
        assert again.returncode == 1
        assert sentence in again.stderr
        assert "seglogd --standby --from" in again.stderr


async def test_a_broker_that_is_cut_from_its_place_goes_on_when_that_is_back(clients: Clients, tmp_path: Path) -> None:
    leases, away = tmp_path / "place/lease", tmp_path / "away"
    with kafka_daemon(tmp_path / "data", *settings(tmp_path / "place")) as running:
        await in_flight(clients, running)
        assert await appends(clients, running) == 0
        leases.rename(away)
        while await appends(clients, running) == 0:
            pass
        away.rename(leases)
        while await appends(clients, running) != 0:
            pass
        assert running.stop() == 0


def test_a_start_waits_for_the_lease_of_one_that_was_killed_but_not_of_one_that_stopped(tmp_path: Path) -> None:
    with kafka_daemon(tmp_path / "data", *settings(tmp_path / "place")) as running:
        waits = "was not released, to end"
        assert running.stop() == 0
        running.start()
        assert waits not in running.log_text()
        running.kill()
        killed = boottime_ns()
        running.start()
        assert waits in running.log_text()
        assert boottime_ns() - killed > LEASE_MS * 1_100_000
        assert running.stop() == 0


def test_a_start_that_waits_for_its_lease_lives_and_is_not_ready(tmp_path: Path) -> None:
    port, keys = free_port(), settings(tmp_path / "place", 600_000)
    with kafka_daemon(tmp_path / "data", *keys) as running:
        running.kill()
    arguments = ["--http", f"127.0.0.1:{port}", *(value for key in keys for value in ("--set", key))]
    with (tmp_path / "log").open("wb") as log, ended(start_daemon(tmp_path / "data", log.fileno(), *arguments)):
        wait_until(lambda: "was not released" in (tmp_path / "log").read_text(), "a start that waits")
        assert (_status(port, "/livez"), _status(port, "/readyz")) == (200, 503)
        assert "broker_ready" not in (tmp_path / "log").read_text()


def _status(port: int, page: str) -> int:
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", page)
        return connection.getresponse().status
    finally:
        connection.close()
