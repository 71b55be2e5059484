"""What goes on beside the members: one who writes records, and one who looks at what the broker says of the groups."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

import seglog
from seglog_protocol.messages import (
    CommittedOffsetsReply,
    CommittedOffsetsRequest,
    DescribeGroupReply,
    DescribeGroupRequest,
)
from tests.members.lines import Described, Looked
from tests.process.faults.living_clients import LivingThread

_PAUSE_SECONDS: Final = 0.1
_CONNECT_SECONDS: Final = 1.0


class _Beside(LivingThread):
    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()

    def end(self) -> None:
        """Have it come to its end; raise its error."""
        self.is_over.set()
        self.finish()


class Feeder(_Beside):
    """Sends one record to each partition, again and again, also while the broker dies and comes back."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        super().__init__()
        self.sent = 0
        """Records in each partition; acknowledged once it has ended."""
        self._address = address
        self._topic = topic
        self._partitions = partitions
        self._producer: seglog.Producer | None = None

    def live(self) -> None:
        """Send until it is told to end; return when all is acknowledged."""
        with seglog.connect(self._address) as client, client.producer(self._topic) as producer:
            self._producer = producer
            while not self.is_over.wait(_PAUSE_SECONDS):
                for partition in range(self._partitions):
                    producer.send(b"%d" % self.sent, partition=partition)
                self.sent += 1

    def abandon(self) -> None:
        """Close at once; does nothing after the end."""
        self.is_over.set()
        if self._producer is not None:
            self._producer.abort(timeout=0)


class Watcher(_Beside):
    """Tells who owns what and what is committed, as often as the broker answers."""

    def __init__(self, address: str, topic: str, groups: Sequence[str], path: Path) -> None:
        super().__init__()
        self._address = address
        self._topic = topic
        self._groups = groups
        self._path = path

    def live(self) -> None:
        """Look until it is told to end."""
        with self._path.open("wb", buffering=0) as output:
            while not self.is_over.wait(_PAUSE_SECONDS):
                with (
                    # The broker is away, or reads what groups committed, or knows no such group yet.
                    suppress(seglog.SeglogError),
                    seglog.connect(self._address, connect_timeout=_CONNECT_SECONDS) as client,
                ):
                    while not self.is_over.wait(_PAUSE_SECONDS):
                        for group in self._groups:
                            output.write(msgspec.json.encode(self._offsets(client, group)) + b"\n")
                            output.write(msgspec.json.encode(self._described(client, group)) + b"\n")

    def _offsets(self, client: seglog.Client, group: str) -> Looked:
        begun = time.monotonic()
        reply, _ = client.call(CommittedOffsetsRequest(group), CommittedOffsetsReply)
        ended = time.monotonic()
        offsets = {}
        for found in reply.offsets:
            if found.error is not None:
                raise found.error
            if found.topic == self._topic and found.offset is not None:
                offsets[found.partition] = found.offset
        return Looked(group, "watcher", begun, ended, offsets)

    def _described(self, client: seglog.Client, group: str) -> Described:
        begun = time.monotonic()
        reply, _ = client.call(DescribeGroupRequest(group), DescribeGroupReply)
        ended = time.monotonic()
        owners: dict[int, list[str]] = defaultdict(list)
        for member in reply.members:
            for assigned in member.assignment or ():
                for partition in assigned.partitions:
                    owners[partition].append(member.member_id)
        members = [member.member_id for member in reply.members]
        return Described(group, "watcher", begun, ended, reply.state, reply.generation, members, owners)
