"""What ``import seglog`` promises."""

import subprocess
import sys
from importlib import metadata

import pytest

import seglog
from seglog.cli.dispatch import ROOT
from tests.support import each_case


def test_every_public_name_is_there() -> None:
    assert sorted(seglog.__all__) == dir(seglog)
    for name in seglog.__all__:
        assert getattr(seglog, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        seglog.nothing  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    assert seglog.__version__ == metadata.version("seglog")


@each_case(
    ("program", "absent"),
    [
        ("import seglog.client, seglog.producer, seglog.consumer, seglog.raw", {"trio", "seglog.trio"}),
        ("import seglog", {"seglog_protocol", "msgpack", "msgspec", "socket", "json"}),
        (
            "from seglog.cli import main; main(['topic', 'list', '--help']); import seglog.cli.topic, seglog.cli.ping",
            {
                "trio",
                "structlog",
                "tqdm",
                "seglog_protocol.zstd_library",
                "lz4",
                "cramjam",
                "crc32c",
                "fractions",
                "argparse",
                "seglog.core.accumulator",
                "seglog.producer",
                "seglog.consumer",
                "seglog.cli.produce",
                "seglog_protocol.compression",
            },
        ),
        *(
            (
                f"from seglog.cli import main; main({[*command, '--help']!r})",
                {"argparse", "json", "msgpack", "msgspec", "pathlib", "socket", "seglog.client", "seglog_spark"},
            )
            for command in ([], *([name] for name in ROOT.commands))
        ),
        ("from seglog.cli import main; main(['--help'])", {f"seglog.cli.{command}" for command in ROOT.commands}),
        (
            "import seglog.cli.produce, seglog.cli.consume",
            {"trio", "structlog", "tqdm", "seglog_protocol.zstd_library", "lz4", "cramjam"},
        ),
    ],
)
def test_nothing_is_imported_before_it_is_needed(program: str, absent: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; import sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert absent.isdisjoint(done.stderr.split())


def test_without_pyarrow_a_sentence_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; import seglog; seglog.read_arrow"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError: seglog.arrow needs the package pyarrow" in done.stderr
    assert done.stderr.rstrip().endswith("pip install 'seglog[arrow]'")


def test_reading_does_not_import_pandas() -> None:
    program = """
import sys

class Watch:
    def find_spec(self, name, *_):
        assert name != "pandas", "half a second of every process that Spark starts"

sys.meta_path.insert(0, Watch())
import seglog.arrow
from seglog.arrow.decoding import decode_verified
from seglog.arrow.schema import schema_of
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.batch_columns import read_batches

data = encode_batch([(0, b"k", b"v", [("h", b"x")]), (1, None, b"", [])])
(found,) = decode_verified(read_batches(data), "t", 3, schema_of(headers=True))
assert found.table.num_rows == 2
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
