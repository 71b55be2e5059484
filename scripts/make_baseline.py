"""Makes the baseline of a release: log directories that later versions must open, and what is in them.

    python scripts/make_baseline.py tests/baselines/0.3.0
    python scripts/make_baseline.py tests/baselines/0.1.0 --commit fb53a77f

It runs the daemon of this tree, or of a commit, fills a directory through it, and keeps it twice: ``clean.tar.gz``
after a clean stop, ``unclean.tar.gz`` as a kill leaves it later. ``contents.json`` has what a client read from either,
``commit`` names the code. A release makes its baseline once, and never again.
"""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import seglog
from seglog.groups import commit_offsets

REPOSITORY: Final = Path(__file__).resolve().parent.parent
FLAGS: Final = (
    "--listen=127.0.0.1:0",
    "--kafka=127.0.0.1:0",
    "--set=seglog.http.listen=127.0.0.1:0",
    "--set=seglog.disk.ballast.bytes=0",
    "--set=offsets.retention.minutes=2147483647",
    "--set=log.flush.offset.checkpoint.interval.ms=600000",
)
"""What baselines are made and opened with: small, and nothing in them expires however old they are."""
_CHARACTERS: Final = 'ab é\t"\\'


def main(argv: Sequence[str] | None = None) -> int:
    """Make the baseline that the arguments name; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("to", type=Path, help="the folder to make")
    parser.add_argument("--commit", help="run the daemon of this commit; else that of the working tree")
    options = parser.parse_args(argv)
    options.to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        code = REPOSITORY if options.commit is None else code_of(options.commit, Path(scratch, "code"))
        data = Path(scratch, "data")
        add_account(code, data)
        with serving(code, data) as (address, daemon):
            fill(address)
            contents = {"clean": contents_of(address)}
            stop(daemon)
        pack(data, options.to / "clean.tar.gz")
        with serving(code, data) as (address, daemon):
            fill_more(address)
            contents["unclean"] = contents_of(address)
            daemon.kill()
            daemon.wait()
        pack(data, options.to / "unclean.tar.gz")
    (options.to / "contents.json").write_text(json.dumps(contents, separators=(",", ":")) + "\n", encoding="utf-8")
    command = ["git", "rev-parse", "--short=8", options.commit or "HEAD"]
    commit = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)  # noqa: S603 - git
    (options.to / "commit").write_text(commit.stdout, encoding="utf-8")
    return 0


def code_of(commit: str, folder: Path) -> Path:
    """The sources of a commit, unpacked into ``folder``. Raises CalledProcessError where there is no such history."""
    command = ["git", "-C", str(REPOSITORY), "archive", commit, "broker", "protocol", "clients"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout  # noqa: S603 - git
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def add_account(code: Path, data: Path) -> None:
    """An account ``alice`` in a new directory."""
    for arguments in (["init", "--password-file", "-"], ["user", "add", "alice", "--password-file", "-"]):
        _run(code, [*arguments, "--data", str(data)], stdin=b"correct horse\n")


def accounts(code: Path, data: Path) -> str:
    """The accounts of a directory, as `seglogd user list` prints them."""
    return _run(code, ["user", "list", "--data", str(data)]).decode()


def _run(code: Path, arguments: Sequence[str], stdin: bytes = b"") -> bytes:
    command = [sys.executable, "-m", "seglog_broker", *arguments]
    done = subprocess.run(command, env=_environment(code), input=stdin, check=True, capture_output=True)  # noqa: S603
    return done.stdout


@contextmanager
def serving(code: Path, data: Path, *flags: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A daemon of these sources on ``data``: its address, and its process, which is gone afterwards."""
    command = [sys.executable, "-m", "seglog_broker", "--data", str(data), *FLAGS, *flags]
    daemon = subprocess.Popen(command, env=_environment(code), stderr=subprocess.PIPE, text=True)  # noqa: S603
    assert daemon.stderr is not None
    told: list[str] = []
    try:
        for line in daemon.stderr:
            told.append(line)
            if found := re.search(r"broker_ready.*? listen=(\S+?),? ", line):
                yield found[1], daemon
                return
        raise RuntimeError("".join(told))
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stderr.close()


def stop(daemon: "subprocess.Popen[str]") -> None:
    """A clean stop."""
    daemon.send_signal(signal.SIGTERM)
    _, told = daemon.communicate()
    if daemon.returncode != 0:
        raise RuntimeError(told)


def _environment(code: Path) -> dict[str, str]:
    paths = [str(code / package) for package in ("broker", "protocol", "clients")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEGLOG_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}


def fill(address: str) -> None:
    """Topics of each kind in several segments, producers, a group."""
    keeps = {"retention.ms": "-1", "segment.bytes": "4096", "file.delete.delay.ms": "0"}
    with seglog.connect(address) as client:
        client.create_topic("orders", 2, keeps)
        client.create_topic("prices", 1, {**keeps, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.9"})
        client.create_topic("empty", 3, {"retention.ms": "-1"})
        _produce(client, 0)
        client.truncate_topic("orders", {1: 20})
        client.converse(commit_offsets("billing", {("orders", 0): 17, ("orders", 1): 23}))


def fill_more(address: str) -> None:
    """What a kill is to leave behind: records after the last checkpoint, and a group's other offsets."""
    with seglog.connect(address) as client:
        _produce(client, 200)
        client.alter_topic("empty", config={"retention.bytes": "1000000"})
        client.converse(commit_offsets("billing", {("orders", 0): 101}))


def _produce(client: seglog.Client, first: int) -> None:
    for codec, idempotent in (("none", True), ("zstd", True), ("lz4", False)):
        with client.producer("orders", compression=codec, idempotent=idempotent, batch_bytes=700) as producer:
            for number in range(first, first + 40):
                producer.send(f"{codec} {number} {_CHARACTERS}".encode(), partition=number % 2)
    with client.producer("prices", batch_bytes=700) as producer:
        for number in range(first, first + 120):
            value = None if number % 17 == 0 else f"price {number}".encode()
            producer.send(value, key=f"item {number % 13}".encode(), headers=[("number", str(number).encode())])


def contents_of(address: str) -> dict[str, Any]:
    """What a client sees: settings, records with offsets, committed offsets.

    Of the compacted topic only what compaction keeps is compared: the last record of each key.
    """
    with seglog.connect(address) as client:
        topics = sorted((topic for topic in client.topics() if topic.name[:2] != "__"), key=lambda topic: topic.name)
        return {
            "topics": {
                topic.name: {
                    "id": topic.id,
                    "partitions": topic.partitions,
                    "config": {key: str(entry.value) for key, entry in sorted(_own(topic.config))},
                    "records": _records(client, topic.name),
                }
                for topic in topics
            },
            "groups": {
                group.group: [[each.topic, each.partition, each.offset] for each in client.group_offsets(group.group)]
                for group in client.groups()
            },
        }


def _own(config: Any) -> list[tuple[str, Any]]:
    return [(key, entry) for key, entry in (config or {}).items() if entry.origin == "topic"]


def _records(client: seglog.Client, topic: str) -> list[list[Any]]:
    rows: dict[object, list[Any]] = {}
    with client.consumer(topic) as consumer:
        for record in consumer:
            texts = [None if each is None else each.decode() for each in (record.key, record.value)]
            headers = [[name, (value or b"").decode()] for name, value in record.headers]
            which = record.key if record.key is not None else (record.partition, record.offset)
            rows[which] = [record.partition, record.offset, record.timestamp, *texts, headers]
    return sorted(rows.values(), key=lambda row: (row[0], row[1]))


def pack(data: Path, archive: Path) -> None:
    """Put a log directory into an archive, as ``data``."""
    with tarfile.open(archive, "w:gz") as files:
        files.add(data, "data", filter=lambda entry: None if entry.name.endswith("/.lock") else entry)


def unpack(archive: Path, folder: Path) -> Path:
    """The log directory of an archive, in ``folder``."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / "data"


if __name__ == "__main__":
    sys.exit(main())
