"""How a test speaks with a client's program: a line of JSON for each step, and a line with its result or its error.

Steps are ``{"do": name, …}``; bytes are base64, null is None. A record is ``[key, value, headers, timestamp]`` with
headers ``[[name, value], …]`` and a timestamp in epoch ms; one that was consumed has its offset in front.

========================  ==========================================================  =============================
step                      arguments                                                   result
========================  ==========================================================  =============================
produce                   topic, partition, acks, codec, idempotent, records          offset of the first record
consume                   topic, partition, offset, count                             records
group                     topic, group, count                                         [partition, offset] of each
login                                                                                 null
keep_on                   topic, seconds                                              records that were sent
========================  ==========================================================  =============================

``acks`` is "0", "1" or "all"; the result of ``produce`` is null with "0". ``codec`` is none, gzip, snappy, lz4 or zstd.
``group`` joins a consumer group, reads ``count`` records from where the group is, commits, and leaves. ``login``
connects, and has the client's own error where it is not let in. ``keep_on`` produces to partition 0 by one producer, a
record every tenth of a second and each acknowledged; any that is not is an error.

The environment's INTEROP_SECURITY says how to connect, as JSON: ``protocol`` as Kafka names it; ``authority``, ``key``
and ``chain`` (files as PEM); ``mechanism``, ``user``, ``password``, and for OAUTHBEARER ``token``, or for how many
seconds one ``lives`` where the client makes it. What is absent has no entry.

Programs in Python use ``serve``. They run in an environment where nothing of seglog is installed.
"""

import base64
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Headers: TypeAlias = list[tuple[str, bytes | None]]
Record: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
Consumed: TypeAlias = tuple[int, bytes | None, bytes | None, Headers, int]

SECURITY: Mapping[str, str] = json.loads(os.environ.get("INTEROP_SECURITY", "{}"))
"""How to connect."""

TIMEOUT_SECONDS = 30
"""What a client may take for one step."""


def pack(data: bytes | None) -> str | None:
    """Bytes as they stand in a step or a result."""
    return None if data is None else base64.b64encode(data).decode("ascii")


def unpack(text: str | None) -> bytes | None:
    """The bytes of a step or a result."""
    return None if text is None else base64.b64decode(text)


def pack_record(record: Record) -> list[Any]:
    """A record as it stands in a step."""
    key, value, headers, timestamp = record
    return [pack(key), pack(value), [[name, pack(header)] for name, header in headers], timestamp]


def unpack_record(packed: list[Any]) -> Record:
    """The record of a step."""
    key, value, headers, timestamp = packed
    return unpack(key), unpack(value), [(name, unpack(header)) for name, header in headers], timestamp


def pack_consumed(record: Consumed) -> list[Any]:
    """A record that was consumed as it stands in a result."""
    return [record[0], *pack_record(record[1:])]


def unpack_consumed(packed: list[Any]) -> Consumed:
    """A record of a result."""
    return packed[0], *unpack_record(packed[1:])


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged_errors(logger: str) -> Iterator[None]:
    """For clients whose error says that there is no connection, and only their log why: an error has those lines."""
    lines, log = _Lines(), logging.getLogger(logger)
    log.addHandler(lines)
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{error}: {'; '.join(lines.lines)}") from error
    finally:
        log.removeHandler(lines)


def serve(steps: Mapping[str, Callable[..., Any]]) -> None:
    """Do what standard input asks for until it ends."""
    for line in sys.stdin:
        step = json.loads(line)
        if "records" in step:
            step["records"] = [unpack_record(record) for record in step["records"]]
        name = step.pop("do")
        try:
            result = steps[name](**step)
            if name == "consume":
                result = [pack_consumed(record) for record in result]
            told = {"result": result}
        except Exception as error:  # noqa: BLE001 - the test judges it
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)
