"""Requests of groups on Kafka's wire, over plain sockets: the same bytes to seglog's Kafka listener and to Kafka."""

import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.harness import Bench, BenchmarkError, Row, take_turns
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.peers.jobs import LoadProcess, load_process
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import Measure
from benchmarks.peers.servers import PeerAbsentError, PeerServer, script_server
from benchmarks.peers.sides import KafkaServer, talked
from benchmarks.raw_client import SOCKET_SECONDS_MAX, open_socket
from seglog_protocol.kafka import Request, messages, read_response, write_request

TOPIC: Final = "bench-groups"
CONCURRENT_TRANSACTIONS: Final = 51
LOADING: Final = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
"""Errors that pass: the coordinator loads, is not there yet, not this broker yet, has not finished what it decided."""

KAFKA_DISK: Final = "Kafka, disk"
KAFKA_OS: Final = "Kafka, os"
"""A real Kafka that syncs before it answers, and one with its defaults."""

REBALANCE_IN_PROGRESS: Final = 27
_FLUSH: Final = {True: "1", False: "9223372036854775807"}
_SETTING_SECONDS: Final = 0.5
"""Kafka applies a changed setting after it has answered."""

_CORRELATION_ID: Final = 7
_PAUSE_SECONDS: Final = 0.1
_RECEIVE_BYTES: Final = 256 * 1024

COMMIT: Final = 8
FIND_COORDINATOR: Final = 4
JOIN: Final = 3
SYNC: Final = 2
HEARTBEAT: Final = 2
LEAVE: Final = 2
"""Versions. Of JoinGroup and what goes with it the last before instance ids, which need no second JoinGroup."""


def frame(request: Request, version: int) -> bytes:
    """A request as bytes, its length included."""
    return b"".join(map(bytes, write_request(_CORRELATION_ID, "bench", request, version)))


def commit_frame(group: str, offset: int, partitions: int = 1, member: str = "", generation: int = -1) -> bytes:
    """OffsetCommit of the same offset for the first partitions of the topic."""
    cls = messages.OffsetCommitRequest
    asked = [
        cls.OffsetCommitRequestPartition(partition_index=number, committed_offset=offset, committed_metadata="")
        for number in range(partitions)
    ]
    topics = [cls.OffsetCommitRequestTopic(name=TOPIC, partitions=asked)]
    request = cls(group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics)
    return frame(request, COMMIT)


def join_frame(group: str, member: str = "", *, session_ms: int = 600_000) -> bytes:
    """JoinGroup with 60 bytes in the place of a subscription."""
    cls = messages.JoinGroupRequest
    request = cls(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=300_000,
        member_id=member,
        protocol_type="bench",
        protocols=[cls.JoinGroupRequestProtocol(name="range", metadata=bytes(60))],
    )
    return frame(request, JOIN)


def sync_frame(group: str, member: str, generation: int, members: Iterable[str] = ()) -> bytes:
    """SyncGroup; the leader brings an assignment of 60 bytes for each of ``members``."""
    cls = messages.SyncGroupRequest
    assignments = [cls.SyncGroupRequestAssignment(member_id=each, assignment=bytes(60)) for each in members]
    request = cls(group_id=group, generation_id=generation, member_id=member, assignments=assignments)
    return frame(request, SYNC)


class Replies:
    """Whole replies out of the bytes of one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._held = b""

    def receive(self) -> list[bytes]:
        """Wait for bytes; the replies that are whole now, without their lengths."""
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise BenchmarkError("the server hung up")
        found, self._held = self.split(self._held + data)
        return found

    def split(self, held: bytes) -> tuple[list[bytes], bytes]:
        """Whole replies, and the rest."""
        found, at = [], 0
        while len(held) - at >= 4:
            end = at + 4 + int.from_bytes(held[at : at + 4], "big")
            if end > len(held):
                break
            found.append(held[at + 4 : end])
            at = end
        return found, held[at:]

    def ask(self, request: Request, version: int) -> Any:
        """One request; its response."""
        return read_response(request.API_KEY, version, memoryview(self.ask_frame(frame(request, version))))[1]

    def ask_frame(self, data: bytes) -> bytes:
        """The same with a ready frame, and the bytes of the reply."""
        self.sock.sendall(data)
        while not (found := self.receive()):
            pass
        return found[0]


def commit_errors(reply: bytes) -> set[int]:
    """The codes in a response to OffsetCommit."""
    response = read_response(messages.OffsetCommitRequest.API_KEY, COMMIT, memoryview(reply))[1]
    assert isinstance(response, messages.OffsetCommitResponse)
    return {each.error_code for topic in response.topics for each in topic.partitions}


def when_loaded(action: Callable[[], int], what: str) -> None:
    """Repeat ``action`` while the code that it returns is one that passes. BenchmarkError for any other."""
    ends = time.monotonic() + SOCKET_SECONDS_MAX
    while (code := action()) in LOADING and time.monotonic() < ends:
        time.sleep(_PAUSE_SECONDS)
    if code:
        raise BenchmarkError(f"{what} was answered with error {code}")


def find_coordinator(replies: Replies, key: str, kind: int = 0) -> None:
    """Return when there is one of this kind, a group's if none is given."""
    asked = messages.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    when_loaded(lambda: int(replies.ask(asked, FIND_COORDINATOR).coordinators[0].error_code), "FindCoordinator")


def prepare(port: int, groups: Sequence[str]) -> None:
    """Return when the coordinators of all groups serve: each has committed something."""
    with open_socket(port) as sock:
        replies = Replies(sock)
        for group in groups:
            find_coordinator(replies, group)
            data = commit_frame(group, 0)
            when_loaded(lambda data=data: max(commit_errors(replies.ask_frame(data))), "OffsetCommit")  # type: ignore[misc]


def nothing() -> Iterable[Any]:
    """Raise BenchmarkError, in the place of what a server should have answered."""
    raise BenchmarkError(f"no answer within {SOCKET_SECONDS_MAX} s")


# --- Members ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group on a connection of its own."""

    group: str
    replies: Replies
    member_id: str = ""
    generation: int = -1
    asked: str = field(default="", repr=False)
    """What the last request was."""

    def join(self) -> None:
        """Send JoinGroup."""
        self._send("join", join_frame(self.group, self.member_id))

    def heartbeat(self) -> None:
        """Send Heartbeat."""
        request = messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        self._send("heartbeat", frame(request, HEARTBEAT))

    def leave(self) -> None:
        """Leave the group, and wait for the answer."""
        request = messages.LeaveGroupRequest(group_id=self.group, member_id=self.member_id)
        code = self.replies.ask(request, LEAVE).error_code
        if code:
            raise BenchmarkError(f"LeaveGroup was answered with error {code}")

    def take(self, reply: bytes) -> bool:
        """Do what follows from a reply; True when the member has its assignment."""
        key, version = _ASKED[self.asked]
        response: Any = read_response(key, version, memoryview(reply))[1]
        if response.error_code == REBALANCE_IN_PROGRESS:
            self.join()
            return False
        if response.error_code:
            raise BenchmarkError(f"{self.asked} was answered with error {response.error_code}")
        if self.asked == "heartbeat":  # it came before the group knew of the change
            self.heartbeat()
            return False
        if self.asked == "join":
            self.member_id, self.generation = response.member_id, response.generation_id
            members = [each.member_id for each in response.members]
            self._send("sync", sync_frame(self.group, self.member_id, self.generation, members))
            return False
        return True

    def _send(self, asked: str, data: bytes) -> None:
        self.asked = asked
        self.replies.sock.sendall(data)


_ASKED: Final[Mapping[str, tuple[int, int]]] = {
    "join": (messages.JoinGroupRequest.API_KEY, JOIN),
    "sync": (messages.SyncGroupRequest.API_KEY, SYNC),
    "heartbeat": (messages.HeartbeatRequest.API_KEY, HEARTBEAT),
}


def settle(members: Sequence[Member]) -> None:
    """Serve the members' replies until all have the assignment of one generation."""
    synced: dict[Member, int] = {}
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.replies.sock, selectors.EVENT_READ, member)
        while len(synced) < len(members) or len(set(synced.values())) > 1:
            for key, _ in selector.select(SOCKET_SECONDS_MAX) or nothing():
                member = key.data
                for reply in member.replies.receive():
                    if member.take(reply):
                        synced[member] = member.generation
            newest = max(synced.values(), default=-1)
            for member in [each for each, generation in synced.items() if generation < newest]:
                del synced[member]  # formed without the others; it hears of them by its heartbeat
                member.heartbeat()


# --- Kafka ------------------------------------------------------------------------------------------------------------


@contextmanager
def real_kafka(bench: Bench, *settings: str) -> Iterator[PeerServer | str]:
    """A Kafka, or why there is none."""
    if bench.kafka_scripts is None:
        yield "not measured: --beside-kafka DIRECTORY, see NOTES.md"
        return
    with ExitStack() as stack:
        directory = stack.enter_context(bench.fresh_directory())
        try:
            server = stack.enter_context(
                script_server(bench.kafka_scripts / "kafka" / "kafka", directory / "kafka", settings, needs=("java",))
            )
        except PeerAbsentError as error:
            yield f"not measured: {error}"
            return
        yield server


def set_flush(server: KafkaServer, flush: bool, *topics: str) -> None:
    """Have a Kafka sync each batch of these topics before it answers, or never."""
    with connect_kafka(server.port) as kafka:
        for topic in topics:
            kafka.alter_topic(topic, {"flush.messages": _FLUSH[flush]})
    time.sleep(_SETTING_SECONDS)


class Contest(NamedTuple):
    """The same talks through Kafka's protocol and natively."""

    talk: str
    load: LoadProcess
    opened: Door
    server: PeerServer | str
    """A real Kafka, or why there is none."""
    topics: Sequence[str]
    """What a real Kafka syncs before it answers, where it is to."""

    def warm_up(self, seconds: float, connections: int, *arguments: int) -> None:
        """Java compiles what runs often."""
        if isinstance(self.server, PeerServer):
            for flush in (False, True):
                self._flushing(self.server, flush, connections, seconds, *arguments)

    def rows(self, bench: Bench, name: str, connections: int, seconds: float, *arguments: int) -> Iterator[Row]:
        """Rate and processor time: ours beside each Kafka, or both of ours beside each other."""
        case: tuple[Any, ...] = (connections, seconds, *arguments)
        sides: dict[str, Callable[[], Measure]] = {
            "Kafka's listener": partial(talked, self.load, f"{self.talk}, kafka", self.opened, *case),
            "native": partial(talked, self.load, f"{self.talk}, native", self.opened.running, *case),
        }
        pairs = [tuple(sides)]
        if isinstance(self.server, PeerServer):
            pairs = [(side, beside) for beside in (KAFKA_DISK, KAFKA_OS) for side in sides]
            sides[KAFKA_DISK] = partial(self._flushing, self.server, True, *case)
            sides[KAFKA_OS] = partial(self._flushing, self.server, False, *case)
        found = dict(zip(sides, take_turns(bench.rounds, *sides.values()), strict=True))
        for side, beside in pairs:
            ours, theirs = found[side], found[beside]
            rates, others = ([one.value for one in each] for each in (ours, theirs))
            yield Row(f"{name}, {side}", f"{self.talk}/s", rates, others, beside)
            times, others = ([one.server_cpu_us or 0 for one in each] for each in (ours, theirs))
            yield Row(f"{name}, {side}, CPU", "µs", times, others, beside)

    def absence(self) -> Iterator[Row]:
        """A row that says why no Kafka was measured."""
        if isinstance(self.server, str):
            yield Row("beside a real Kafka", f"{self.talk}/s", note=self.server)

    def _flushing(self, server: PeerServer, flush: bool, *case: Any) -> Measure:
        set_flush(server, flush, *self.topics)
        return talked(self.load, f"{self.talk}, kafka", server, *case)


@contextmanager
def contest(bench: Bench, talk: str, prepare_one: Callable[[KafkaServer], object], *topics: str) -> Iterator[Contest]:
    """Of a daemon and a real Kafka, both prepared."""
    with (
        daemon_with_door(bench) as opened,
        real_kafka(bench) as server,
        load_process("benchmarks.peers.load") as load,
    ):
        for one in (opened, server):
            if not isinstance(one, str):
                prepare_one(one)
        yield Contest(talk, load, opened, server, topics)
