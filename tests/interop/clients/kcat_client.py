"""kcat as ``conversation`` has it: a command for each step, one for each record produced.

kcat takes keys and headers from its command line, so they are text here, and it sets no timestamps.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.clients.conversation import TIMEOUT_SECONDS, Consumed, Headers, Record, serve

SERVER, KCAT = sys.argv[1:3]
_NULL = -1


def _kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        [KCAT, "-b", SERVER, "-q", *arguments],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def produce(topic: str, partition: int, acks: str, codec: str, idempotent: bool, records: list[Record]) -> int | None:
    first = None if acks == "0" else ends(topic, partition)[1]
    settings = [
        f"acks={acks}",
        f"enable.idempotence={str(idempotent).lower()}",
        f"message.timeout.ms={TIMEOUT_SECONDS}000",
    ]
    place = ["-P", "-t", topic, "-p", str(partition), "-z", codec]
    place += [part for setting in settings for part in ("-X", setting)]
    for key, value, headers, _ in records:
        names = [
            part for name, header in headers for part in ("-H", name if header is None else f"{name}={header.decode()}")
        ]
        if value:
            with tempfile.NamedTemporaryFile() as file:
                Path(file.name).write_bytes(value)
                _kcat(*place, *names, *([] if key is None else ["-k", key.decode()]), file.name)
        else:  # kcat sends nothing for an empty file
            _kcat(*place, *names, "-K:", *(["-Z"] if value is None else []), stdin=(key or b"") + b":\n")
    return first


def consume(topic: str, partition: int, offset: int, count: int) -> list[Consumed]:
    template = "%o %T %K %S %h\n%k%s"
    place = ["-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count)]
    told = _kcat("-C", *place, "-f", template)
    found: list[Consumed] = []
    while told:
        line, _, told = told.partition(b"\n")
        at, timestamp, key_size, size, names = line.decode().split(" ", 4)
        key, told = _cut(told, int(key_size))
        value, told = _cut(told, int(size))
        found.append((int(at), key, value, _headers(names), int(timestamp)))
    return found


def _cut(data: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, data) if size == _NULL else (data[:size], data[size:])


def _headers(text: str) -> Headers:
    found: Headers = []
    for one in text.split(",") if text else []:
        name, _, value = one.partition("=")
        found.append((name, None if value == "NULL" else value.encode()))
    return found


def _offset_at(topic: str, partition: int, time: int) -> int:
    told = _kcat("-Q", "-t", f"{topic}:{partition}:{time}")
    return int(told.decode().split("offset ")[1])


def offset_for_time(topic: str, partition: int, time: int) -> int | None:
    found = _offset_at(topic, partition, time)
    return None if found < 0 else found


def ends(topic: str, partition: int) -> list[int]:
    return [_offset_at(topic, partition, -2), _offset_at(topic, partition, -1)]


def topics() -> list[str]:
    lines = _kcat("-L").decode().splitlines()
    return [line.split('"')[1] for line in lines if line.startswith("  topic ")]


def describe(topic: str) -> int:
    lines = _kcat("-L", "-t", topic).decode().splitlines()
    return sum(line.startswith("    partition ") for line in lines)


def group(topic: str, group: str, count: int) -> list[tuple[int, int]]:
    told = _kcat("-G", group, "-c", str(count), "-X", "auto.offset.reset=earliest", "-f", "%p %o\n", topic)
    places = [line.split() for line in told.decode().splitlines()]
    return [(int(partition), int(offset)) for partition, offset in places]


if __name__ == "__main__":
    steps = (produce, consume, offset_for_time, ends, topics, describe, group)
    serve({step.__name__: step for step in steps})
