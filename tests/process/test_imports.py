"""Imports of commands, clients and the daemon: nothing is loaded, read or generated before it is needed."""

import subprocess
import sys

from seglog.cli.dispatch import ROOT
from tests.processes import clean_environment
from tests.support import each_case

LOOPS_AND_CODECS = {"trio", "structlog", "seglog_protocol.zstd_library", "lz4", "cramjam"}
HELP = (
    f"from seglog.cli import main; [main([*words, '--help']) for words in {[[], *([name] for name in ROOT.commands)]}]"
)
EMPTY_CACHES = """
import seglog_protocol.kafka
from seglog_protocol.kafka import compiler, definitions, structs
for each in (compiler.message_reader, compiler.message_writer, structs.message_class, definitions._blocks):
    assert each.cache_info().currsize == 0, each
"""
UNREAD_TABLE = """
import seglog_broker.server, seglog_broker.__main__
from seglog_broker.config import kafka_configs
assert kafka_configs._table.cache_info().currsize == 0
kafka_configs.kafka_keys('topic')
assert kafka_configs._table.cache_info().currsize == 1
"""
IDLE_DAEMON = """
from seglog_broker.runtime.interpreter import import_later
import_later()
import structlog, trio, seglog_broker.server
from seglog_protocol.checksum import crc32c
assert crc32c(b"123456789") == 0xE3069283
"""
DECODED = """
import seglog.arrow
from seglog.arrow.decoding import decode_verified
from seglog.arrow.schema import schema_of
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.batch_columns import read_batches
data = encode_batch([(0, b"k", b"v", [("h", b"x")]), (1, None, b"", [])])
(found,) = decode_verified(read_batches(data), "t", 3, schema_of(headers=True))
assert found.table.num_rows == 2
"""
"""pandas is half a second of every process that Spark starts."""


@each_case(
    ("program", "absent"),
    [
        ("import seglog.client, seglog.producer, seglog.consumer, seglog.raw", {"trio", "seglog.trio"}),
        ("import seglog", {"seglog_protocol", "msgpack", "msgspec", "socket", "json", "typing", "re"}),
        ("from seglog.cli import main; main(['--version'])", {"click", "typing", "re", "importlib.metadata"}),
        (IDLE_DAEMON, {"asyncio.events", "_hashlib", "_ssl", "cramjam.cramjam", "email", "re2._re2", "scramp.core"}),
        (
            "from seglog.cli import main; main(['topic', 'list', '--help']); import seglog.cli.topic, seglog.cli.ping",
            {
                *(*LOOPS_AND_CODECS, "tqdm", "crc32c", "fractions", "argparse", "seglog_protocol.compression"),
                *("seglog.core.accumulator", "seglog.producer", "seglog.consumer", "seglog.cli.produce"),
            },
        ),
        (
            HELP,
            {
                *("argparse", "json", "msgpack", "msgspec", "pathlib", "socket", "trio", "seglog.client"),
                *("seglog.testing", "seglog_broker", "seglog_spark"),
            },
        ),
        ("from seglog.cli import main; main(['--help'])", {f"seglog.cli.{command}" for command in ROOT.commands}),
        ("import seglog.cli.produce, seglog.cli.consume", {*LOOPS_AND_CODECS, "tqdm"}),
        ("from seglog.testing import Broker; Broker().start()", {"trustme"}),
        (DECODED, {"pandas"}),
        (EMPTY_CACHES, {"inspect", "dataclasses", "msgspec", "msgpack", "importlib.resources"}),
        (UNREAD_TABLE, {"multiprocessing"}),
        ("from seglog_broker.__main__ import main; main(['--version'])", {"trio"}),
        (
            "from seglog_broker.config import load_config; load_config(None, '', {}, ['log.dir=x'])",
            {*LOOPS_AND_CODECS, "msgpack", "msgspec", "tomllib", "difflib", "socket"},
        ),
        (
            "import seglog_broker.__main__, seglog_broker.server, seglog_broker.workers.jobs",
            {"numpy", "seglog_broker.workers.segment_scrub"},
        ),
    ],
)
def test_nothing_is_imported_before_it_is_needed(program: str, absent: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules, file=sys.stderr)"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert absent & set(done.stderr.split()) == set()
