"""``compression.type`` of a daemon's topics: what is stored and read for all codecs, and who waits meanwhile."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from seglog.raw import RawBatch, append
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from tests.processes import clean_environment, daemon, workers

_CODECS = [codec.name.lower() for codec in Codec]
_STORED = {"uncompressed": "none", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}
_LARGE = b"".join(b"%d " % (number * 7919 % 100_003) for number in range(150_000))  # 900 kB
_VALUES = [b"small", b"", _LARGE[:10_000], _LARGE]


def _dumped_codecs(partition: Path) -> tuple[list[str], list[str]]:
    """The codec of every batch, and those of the segment, as `seglogd dump` shows them."""
    command = [sys.executable, "-m", "seglog_broker", "dump", "--json", str(partition)]
    log = [*command[:-1], str(partition / f"{0:020}.log")]
    found = []
    for each, kind in ((log, "batch"), (command, "segment")):
        done = subprocess.run(each, capture_output=True, env=clean_environment(), check=True)
        found.append([fact for fact in map(json.loads, done.stdout.splitlines()) if fact["kind"] == kind])
    return [batch["codec"] for batch in found[0]], found[1][0]["codecs"]


@pytest.mark.soak
def test_every_codec_is_stored_in_every_codec_and_read_as_it_was_sent(tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as running:
        with seglog.connect(running.address) as client:
            for kind in (*_STORED, "producer"):
                client.create_topic(kind, config={"compression.type": kind, "retention.ms": -1})
                for codec in _CODECS:
                    with client.producer(kind, compression=codec, linger_ms=0) as producer:
                        for value in _VALUES:
                            producer.send(value, key=codec, headers={"h": b"x"}, timestamp=1_700_000_000_000).result()
                        producer.flush()
                with client.consumer(kind, start=0) as consumer:
                    records = list(consumer)
                assert [(record.offset, record.key, record.value) for record in records] == [
                    (number, _CODECS[number // len(_VALUES)].encode(), _VALUES[number % len(_VALUES)])
                    for number in range(len(_CODECS) * len(_VALUES))
                ]
        for kind, name in _STORED.items():
            assert _dumped_codecs(running.directory / f"{kind}-0") == ([name] * len(_CODECS) * len(_VALUES), [name])
        sent = [codec for codec in _CODECS for _ in _VALUES]
        assert _dumped_codecs(running.directory / "producer-0") == (sent, sorted(_CODECS))
        with seglog.connect(running.address) as client:
            entry = client.explain.config("zstd")["compression.type"]
        assert (entry.value, entry.shortfall) == ("zstd", None)
        assert running.stop() == 0


def test_nobody_else_waits_for_a_large_batch_that_is_being_recompressed(tmp_path: Path) -> None:
    """The process that does it is stopped meanwhile, so that it cannot be done however long the others take."""
    batch = encode_batch([(-1, b"k", _LARGE, ())])
    with daemon(tmp_path / "data") as running, seglog.connect(running.address) as client:
        assert running.process is not None
        client.create_topic("packed", config={"compression.type": "zstd", "compression.zstd.level": 9})
        client.create_topic("plain")
        append(client, [RawBatch("packed", 0, batch)])
        [worker] = workers("recompressor", running.process.pid)
        os.kill(worker, signal.SIGSTOP)
        try:
            with client.producer("packed", linger_ms=0) as producer:
                waiting = producer.send(_LARGE, key=b"waits")
                with client.producer("plain", linger_ms=0) as healthy:
                    for number in range(50):
                        assert healthy.send(b"%d" % number).result().offset == number
                [receipt] = append(client, [RawBatch("packed", 0, encode_batch([(-1, b"k", b"small", ())]))])
                assert isinstance(receipt, seglog.Receipt)
                assert receipt.offset == 1, "not even the same partition, from another connection"
                assert not waiting.done()
                os.kill(worker, signal.SIGCONT)
                assert waiting.result().offset == 2
        finally:
            os.kill(worker, signal.SIGCONT)
        with client.consumer("packed", start=0) as consumer:
            assert [record.value for record in consumer] == [_LARGE, b"small", _LARGE]
        assert _dumped_codecs(running.directory / "packed-0") == (["zstd"] * 3, ["zstd"])
        assert workers("recompressor", running.process.pid) == [worker]
        assert running.stop() == 0
