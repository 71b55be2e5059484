"""Batches that decompress to very much are refused within a gibibyte of address space."""

import subprocess
import sys
from pathlib import Path

import pytest

from seglog_protocol.compression import Codec, compress
from tests.unit.protocol.test_compression import XERIAL_HEADER, gzip_bomb, lz4_bomb, snappy_bomb, zstd_bomb

BOMBS = {
    "gzip": (Codec.GZIP, gzip_bomb),
    "gzip members": (Codec.GZIP, lambda: compress(Codec.GZIP, bytes(60 << 20)) * 50),
    "snappy blocks": (Codec.SNAPPY, snappy_bomb),
    "a snappy block that announces 4 GiB": (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "a xerial block that announces 4 GiB": (
        Codec.SNAPPY,
        lambda: XERIAL_HEADER + b"\x00\x00\x00\x06" + b"\xff\xff\xff\xff\x0f\x00",
    ),
    "lz4": (Codec.LZ4, lz4_bomb),
    "zstd": (Codec.ZSTD, lambda: zstd_bomb(23)),
    "zstd with the largest window": (Codec.ZSTD, lambda: zstd_bomb(27)),
    "zstd that announces 4 GiB": (Codec.ZSTD, lambda: bytes.fromhex("28b52ffda0ffffffff") + b"\x01\x00\x00"),
    "zstd frames": (Codec.ZSTD, lambda: compress(Codec.ZSTD, bytes(60 << 20)) * 70),
}


LIMITED = """
import resource, sys, zlib
import cramjam, lz4.frame, seglog_protocol.zstd_library  # what they need themselves is not the question
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec, decompress
from seglog_protocol.errors import DecompressedTooLargeError
from seglog_protocol.record_batch import parse_header, seal_batch
from seglog_protocol.records import decode_records

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
codec, bomb = Codec[sys.argv[1]], sys.stdin.buffer.read()
try:
    decompress(codec, bomb)
except DecompressedTooLargeError as error:
    print("refused at", error.limit)
header = parse_header(encode_batch([(0, None, b"", ())]))._replace(attributes=int(codec), base_offset=7)
batch = seal_batch(header, bomb)
try:
    decode_records(parse_header(batch), batch)
except DecompressedTooLargeError as error:
    print("offset", error.start_offset)
print("alive", len(bytearray(200 << 20)) >> 20)
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if at % 3 == 0 else [pytest.mark.soak]) for at, name in enumerate(BOMBS)]
)
@pytest.mark.skipif(sys.platform != "linux", reason="linux: no enforced address-space limit elsewhere")
def test_a_bomb_is_refused_and_the_process_lives_within_one_gib_of_address_space(name: str) -> None:
    codec, make = BOMBS[name]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, codec.name],
        input=make(),
        capture_output=True,
        env={"PYTHONPATH": ":".join(str(Path(path).absolute()) for path in sys.path if path)},
        check=False,
    )
    assert done.stdout.decode().splitlines() == ["refused at 67108864", "offset 7", "alive 200"], done.stderr.decode()
