"""What a topic holds now, and waiting for what is still to come."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from seglog.client import Client
from seglog.core.records import Record
from seglog.groups import GroupDescription
from seglog.testing.errors import BrokerStoppedError, NotArrivedError
from seglog_broker.texts import counted
from seglog_protocol.errors import (
    ClientClosedError,
    ConnectionLostError,
    NotReachableError,
    UnknownGroupError,
    UnknownTopicError,
)

WAIT_SECONDS: Final = 10.0
"""How long tests wait, if they do not say."""

POLL_SECONDS_MIN: Final = 0.002
POLL_SECONDS_MAX: Final = 0.05
"""The pause between two looks at a topic, which doubles from the one to the other."""

STABLE: Final = "Stable"
"""The state of a group whose members all have their partitions."""

AWAY: Final = (BrokerStoppedError, ClientClosedError, ConnectionLostError, NotReachableError)
"""What is met while the broker is stopped, or as it stops."""

SHOWN_MAX: Final = 5
VALUE_CHARACTERS_MAX: Final = 80


class TopicReader:
    """Reads a topic from its beginning, more at each call. Aborted transactions are left out."""

    def __init__(self, client: Client, topic: str) -> None:
        self.records: list[Record] = []
        """All so far, partition by partition as they were read."""
        self.client = client
        self._topic = topic
        self._next: dict[int, int] = {}

    def read(self) -> list[Record]:
        """Read on to the present end of each partition. Raises UnknownTopicError."""
        with self.client.consumer(
            self._topic, start=self._next or "earliest", on_out_of_range="earliest", isolation="read_committed"
        ) as consumer:
            self.records += consumer
            self._next |= consumer.positions()
        return self.records


def wait_for(
    client: Callable[[], Client],
    topic: str,
    count: int,
    timeout: float,
    where: Callable[[Record], bool] | None,
    check_open: Callable[[], None],
) -> list[Record]:
    """The records of ``topic`` for which ``where`` holds, as soon as they are ``count``.

    It goes on over stops and starts of the broker; ``check_open`` raises BrokerStoppedError when that is closed. Raises
    NotArrivedError after ``timeout`` seconds.
    """
    __tracebackhide__ = True  # pytest shows the line of the test and the sentence
    reader: TopicReader | None = None
    records: list[Record] = []
    found: list[Record] = []
    exists = False
    for _ in _looks(timeout, check_open):
        with suppress(*AWAY, UnknownTopicError):  # its first record may make the topic
            present = client()
            if reader is None or reader.client is not present:  # a broker that came back may have lost records
                reader = TopicReader(present, topic)
            reader.read()
            exists = True
        records = [] if reader is None else reader.records
        found = [record for record in records if where is None or where(record)]
        if len(found) >= count and exists:
            return found
    wanted = f"{counted(count, 'record')} {'was' if count == 1 else 'were'} waited for"
    if not exists:
        raise NotArrivedError(f"there is no topic {topic!r} after {timeout:g} s; {wanted}")
    of_these = "" if where is None else f", {len(found)} of those that were waited for"
    text = f"{topic} has {counted(len(records), 'record')} after {timeout:g} s{of_these}; {wanted}"
    if records:
        text += ". The last:\n" + "\n".join(map(describe_record, records[-SHOWN_MAX:]))
    raise NotArrivedError(text)


def wait_for_group(
    client: Callable[[], Client],
    group: str,
    members: int,
    timeout: float,
    after: int,
    check_open: Callable[[], None],
) -> GroupDescription:
    """The group, as soon as so many members share its partitions, in a generation ``after`` that one.

    As ``wait_for``. Raises NotArrivedError after ``timeout`` seconds.
    """
    __tracebackhide__ = True
    found: GroupDescription | None = None
    for _ in _looks(timeout, check_open):
        found = None
        with suppress(*AWAY, UnknownGroupError):  # it begins with its first member
            found = client().describe_group(group)
        is_shared = found is not None and found.group.state == STABLE and found.group.generation > after
        if found is not None and is_shared and len(found.members) == members:
            return found
    wanted = "1 member that shares" if members == 1 else f"{members} members that share"
    wanted += " its partitions" if after < 0 else f" its partitions, after generation {after},"
    wanted += " was waited for" if members == 1 else " were waited for"
    if found is None:
        raise NotArrivedError(f"there is no group {group!r} after {timeout:g} s; {wanted}")
    state, generation = found.group.state, found.group.generation
    raise NotArrivedError(
        f"group {group!r} is {state} after {timeout:g} s, in generation {generation}, with "
        f"{counted(len(found.members), 'member')}; {wanted}"
    )


def _looks(timeout: float, check_open: Callable[[], None]) -> Iterator[None]:
    """One item for each look, with longer and longer pauses between them, for ``timeout`` seconds."""
    deadline, pause = time.monotonic() + timeout, POLL_SECONDS_MIN
    while True:
        check_open()
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(2 * pause, POLL_SECONDS_MAX)


def describe_record(record: Record) -> str:
    """One record in one line."""
    parts = [f"  {record.topic}-{record.partition} offset {record.offset}:"]
    if record.key is not None:
        parts.append(f"key {_shown(record.key)},")
    parts.append("no value (a tombstone)" if record.value is None else f"value {_shown(record.value)}")
    if record.headers:
        parts.append(f"headers {dict(record.headers)!r}"[:VALUE_CHARACTERS_MAX])
    return " ".join(parts)


def _shown(data: bytes) -> str:
    shown = repr(data)
    return shown if len(shown) <= VALUE_CHARACTERS_MAX else f"{shown[:VALUE_CHARACTERS_MAX]}… ({len(data)} bytes)"
