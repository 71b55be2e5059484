"""``compression.type`` of a daemon's topics: what is stored and read for all codecs, and who waits meanwhile."""

import json
import os
import signal
from pathlib import Path

import seglog
from seglog.raw import RawBatch, append
from seglog_protocol.batch_builder import encode_batch
from tests.processes import daemon, seglogd, workers

_LARGE = b"".join(b"%d " % (number * 7919 % 100_003) for number in range(150_000))  # 900 kB


def _dumped_codecs(partition: Path) -> tuple[list[str], list[str]]:
    """The codec of every batch, and those of the segment, as `seglogd dump` shows them."""
    found = []
    for path, kind in ((partition / f"{0:020}.log", "batch"), (partition, "segment")):
        facts = map(json.loads, seglogd("dump", "--json", path).stdout.splitlines())
        found.append([fact for fact in facts if fact["kind"] == kind])
    return [batch["codec"] for batch in found[0]], found[1][0]["codecs"]


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
