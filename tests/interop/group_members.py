"""Kafka's clients as members of a group of the consumer protocol: processes that read until they are ended."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import CLIENTS, environment_of, go_program, java_program
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.processes import started_into_files

GROUP: Final = "app"
WAIT_SECONDS: Final = 300.0

CONFLUENT: Final = "confluent-kafka"
JAVA: Final = "java"
FRANZ: Final = "franz-go"

Place = tuple[str, int]
"""A topic and the number of a partition."""


def wait_until(what: str, condition: Callable[[], Any]) -> None:
    """Return when the condition holds, which it must in the end."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class Member:
    """A client that has joined the group, or will."""

    def __init__(self, command: Sequence[str], path: Path) -> None:
        self._path = path
        self._process = started_into_files(command, path, path.with_suffix(".err"))

    def leave(self) -> None:
        """Have it commit and leave the group, and end."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) in (0, 128 + signal.SIGTERM), self.errors()

    def kill(self) -> None:
        """SIGKILL: nobody hears of it any more."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Be gone, if it is not yet."""
        if self._process.poll() is None:
            self.kill()

    def output(self) -> str:
        """What it wrote to stdout."""
        return self._path.read_text(encoding="utf-8")

    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._path.with_suffix(".err").read_text(encoding="utf-8")

    def assigned(self) -> set[Place]:
        """What it has, as it told last."""
        told = [value for what, value in self._told() if what == "assigned"]
        return {(topic, number) for topic, number in told[-1]} if told else set()

    def read(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of each record that it has read."""
        told = [value for what, value in self._told() if what == "record"]
        return [(topic, number, offset) for topic, number, offset in told]

    def _told(self) -> Iterator[tuple[str, Any]]:
        for line in self._path.read_bytes().split(b"\n")[:-1]:
            yield from json.loads(line).items()


class Members:
    """Programs that are members of one group, or were."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self.all: list[Member] = []

    def start(self, client: str, *topics: str, **settings: str) -> Member:
        """A member that reads topics, or those that an only ``^…`` matches; settings with ``_`` for ``.``."""
        told = {
            "bootstrap.servers": f"127.0.0.1:{self._port}",
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "200",
            "metadata.max.age.ms": "1000",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        command = [*_command(client), json.dumps(told), *topics]
        self.all.append(Member(command, self._folder / f"member-{len(self.all)}.jsonl"))
        return self.all[-1]

    def read(self) -> list[tuple[str, int, int]]:
        """What all of them have read, those that have ended too."""
        return [record for member in self.all for record in member.read()]


def _command(client: str) -> list[str]:
    with skipped_where_absent(client):
        if client == JAVA:
            command = java_program("JavaMember")
        elif client == FRANZ:
            command = go_program("member")
        else:
            command = [str(environment_of()), str(CLIENTS / "confluent_member.py")]
    return command


@contextmanager
def ended(processes: Sequence[Member]) -> Iterator[None]:
    """End the processes afterwards; an error gets a note with the end of each one's output."""
    try:
        yield
    except BaseException as error:
        for process in processes:
            error.add_note(process.output()[-2000:] + process.errors()[-2000:])
        raise
    finally:
        for process in processes:
            process.end()


@contextmanager
def members(folder: Path, port: int) -> Iterator[Members]:
    """Members of a group on a port of this machine; gone afterwards."""
    started = Members(folder, port)
    with ended(started.all):
        yield started


def described(port: int) -> Plain:
    """What ConsumerGroupDescribe says of the group."""
    with Wire(port) as wire:
        [found] = plain(wire.ask(request("ConsumerGroupDescribe", {"group_ids": [GROUP]}), 1))["groups"]
    return found
