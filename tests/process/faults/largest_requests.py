"""The largest request of each api, of both wires: one thing named very many times, very many things, or all there are.

``python -m tests.process.faults.largest_requests [PARTITIONS]`` asks a daemon each of them and prints what it cost.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import seglog
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.listeners.kafka.apis import APIS
from seglog_protocol.frames import encode_frame
from seglog_protocol.kafka import write_request
from tests.interop.kafka_wire import Plain, request
from tests.process.faults import hostile_peer
from tests.process.faults.hostile_kafka_peer import Peer
from tests.process.faults.large_requests import GROUPS, Places, kafka_requests, member, native_requests
from tests.processes import Daemon, daemon

MEMBERS: Final = 20
METADATA: Final = 100_000
KAFKA: Final = ("--set", "listeners=PLAINTEXT://127.0.0.1:0", "--set", "auto.create.topics.enable=false")


class Cost(NamedTuple):
    """What a request cost."""

    title: str
    turn_ms: float
    """Processor time of the longest turn of the loop."""
    collection_ms: float
    """Of it, perhaps, the longest collection of garbage."""
    response_bytes: int


def prepare(running: Daemon, partitions: int) -> Places:
    """Make topics, and groups that have committed all partitions."""
    with seglog.connect(running.address, request_timeout=600) as client:
        for name in ("a-wide", "b-wide"):
            client.create_topic(name, partitions=partitions // 2)
        for number in range(50):
            client.create_topic(f"topic-{number:03}", partitions=1)
        topics = {topic.name: (id_bytes(topic.id), topic.partitions) for topic in client.topics()}
    places = Places({name: known for name, known in topics.items() if not name.startswith("__")})
    peer = Peer(running.kafka_port)
    for group in ("offsets", "more-offsets"):
        committed = {"group_id": group, "topics": places.each(committed_metadata="x" * 20)}
        peer.ask(request("OffsetCommit", committed), 8)
    for number in range(GROUPS):
        _join(running, f"group-{number:03}", MEMBERS if number == 0 else 1)
    for number in range(MEMBERS):
        told: Any
        [told] = peer.ask(request("ConsumerGroupHeartbeat", member("consumers", f"member-{number}", *topics)), 1)
        assert not told.error_code, told
    peer.close()
    return places


def _join(running: Daemon, group: str, members: int) -> None:
    """Members of the classic protocol, with much to say of themselves."""
    timeouts = dict.fromkeys(("session_timeout_ms", "rebalance_timeout_ms"), 300_000)
    protocols = [{"name": "range", "metadata": "00" * METADATA}]
    joining: dict[str, Plain] = {"group_id": group, **timeouts, "protocol_type": "x", "protocols": protocols}
    peers = [Peer(running.kafka_port) for _ in range(members)]
    ids = [peer.ask(request("JoinGroup", joining), 4)[0].member_id for peer in peers]  # type: ignore[attr-defined]

    def all_ask(api: str, version: int, fields: list[dict[str, Plain]]) -> list[Any]:
        for peer, given in zip(peers, fields, strict=True):
            peer.send(b"".join(write_request(1, "peer", request(api, given), version)))
        return [peer.wait_for(1)[0] for peer in peers]

    joined = all_ask("JoinGroup", 4, [joining | {"member_id": member} for member in ids])
    assigned = [{"member_id": member, "assignment": "00"} for member in ids]
    syncing = {"group_id": group, "generation_id": joined[0].generation_id}
    leading = [assigned if told.leader == told.member_id else [] for told in joined]
    all_ask("SyncGroup", 3, [{**syncing, "member_id": m, "assignments": a} for m, a in zip(ids, leading, strict=True)])
    for peer in peers:
        peer.close()


def costs(running: Daemon, places: Places) -> Iterator[Cost]:
    """Ask everything, one request after the other."""
    meter = hostile_peer.Peer(running.port)
    peer = Peer(running.kafka_port)
    meter.ask({"api": "metrics"})

    def cost(title: str, size: int) -> Cost:
        metrics = meter.ask({"api": "metrics"})[0]["metrics"]
        return Cost(title, metrics["loop_busy_seconds"] * 1000, metrics["collection_seconds"] * 1000, size)

    for title, version, fields in kafka_requests(places):
        largest = request(title.partition(":")[0], fields)
        assert version in APIS[largest.API_KEY].versions, title
        before = peer.received
        asked = peer.ask(largest, version)
        yield cost(f"{title} v{version}" + ("" if asked else " (closed)"), peer.received - before)
    for title, header in native_requests(places):
        before = meter.received
        meter.answer(encode_frame({"id": 1, "v": 1} | header))
        yield cost(title, meter.received - before)
    peer.close()
    meter.close()


def main() -> None:
    """Print a line for each request."""
    with tempfile.TemporaryDirectory(prefix="seglog-largest-") as folder:
        under = [sys.executable, "-m", "tests.process.faults.metered_daemon"]
        with daemon(Path(folder) / "data", *KAFKA, under=under) as running:
            places = prepare(running, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
            for found in costs(running, places):
                print(
                    f"{found.turn_ms:8.1f} ms {found.collection_ms:8.1f} ms {found.response_bytes:11,} B  {found.title}"
                )
            status = Path(f"/proc/{running.process.pid}/status").read_text()  # type: ignore[union-attr]
            print(status.partition("VmHWM:")[2].split()[0], "KiB at most")


if __name__ == "__main__":
    main()
