"""``pip install seglog`` is the client and its command line, and small; what is missing there names its extra.

The wheel is installed, with nothing but what it asks for, into an environment of its own; the broker runs in that of
the tests.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from seglog_protocol.compression import Codec
from seglog_protocol.extras import EXTRAS
from tests.installed import Installed, build_wheel
from tests.processes import Daemon, daemon
from tests.support import REPOSITORY

BYTES_MAX: Final = 34_000_000
"""Of all that ``pip install seglog`` puts on the disk, beside Python."""

IMPORTED: Final = """
import sys
from pathlib import Path
from seglog.cli import main
code = main(sys.argv[1:]) if sys.argv[1:] else 0
packages = Path({packages!r})
print(*{{
    name.partition(".")[0]
    for name, module in list(sys.modules.items())
    if packages in Path(getattr(module, "__file__", None) or "/").parents and not name.startswith("seglog")
}}, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("thin") / "venv", build_wheel(tmp_path_factory.mktemp("wheel")))


def run(installed: Installed, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """One of its programs, which finds nothing of this checkout."""
    program, *arguments = command
    return subprocess.run(
        [installed.bin / program, *arguments],
        input=stdin,
        cwd=installed.bin,
        env={name: value for name, value in os.environ.items() if not name.startswith(("SEGLOG_", "PYTHON"))},
        capture_output=True,
        text=True,
        check=False,
    )


def imported(installed: Installed, *arguments: str) -> set[str]:
    """Packages of others that a command has imported; without one, those that the command line imports to begin."""
    program = IMPORTED.format(packages=str(installed.packages))
    done = run(installed, "python", "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_it_is_small(installed: Installed) -> None:
    sizes = installed.sizes()
    zstd = set() if sys.version_info >= (3, 14) else {"backports-zstd"}
    needed = {"click", "msgpack", "msgspec", "crc32c", "cramjam", "lz4", "tqdm", "mypy-extensions", "scramp"}
    assert sizes.keys() == {"seglog", "asn1crypto"} | needed | zstd
    assert min(sizes.values()) > 5_000  # each of them is counted
    assert sum(sizes.values()) <= BYTES_MAX, sizes


def test_what_an_extra_is_for_is_what_it_installs() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for needed in map(Requirement, project["optional-dependencies"][extra]):
            found |= {needed.name} if needed.name != "seglog" else set().union(*map(packages, needed.extras))
        return found

    assert {extra: set(modules.values()) for extra, modules in EXTRAS.items()} == {
        extra: packages(extra) for extra in EXTRAS
    }


def test_little_is_imported(installed: Installed, shared: Daemon) -> None:
    assert imported(installed) == set()
    assert imported(installed, "--server", shared.address, "topic", "list") == {"click", "msgpack", "msgspec"}
    program = "import seglog, sys; print(*sys.modules)"
    modules = run(installed, "python", "-c", program).stdout.split()
    assert [name for name in modules if name.startswith("seglog")] == ["seglog"]
    assert {name.partition(".")[0] for name in modules}.isdisjoint(installed.dependencies)


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_it_writes_and_reads_every_codec(installed: Installed, shared: Daemon, codec: str) -> None:
    server = ("--server", shared.address)
    made = run(installed, "seglog", *server, "topic", "create", codec)
    assert made.returncode == 0, made.stderr
    lines = "".join(f"line {number}\n" for number in range(1000))
    sent = run(installed, "seglog", *server, "produce", codec, "--compression", codec, stdin=lines)
    assert sent.returncode == 0, sent.stderr
    read = run(installed, "seglog", *server, "consume", codec, "--from", "earliest")
    assert (read.returncode, read.stdout) == (0, lines), read.stderr
    (log,) = (shared.directory / f"{codec}-0").glob("*.log")
    dumped = run(installed, "seglogd", "dump", "--json", str(log))
    assert dumped.returncode == 0, dumped.stderr
    batches = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert {batch["codec"] for batch in batches if "codec" in batch} == {codec}


@pytest.mark.parametrize("command", [(), ("--data", "elsewhere"), ("--set", "num.partitions=3")])
def test_the_daemon_names_its_extra_and_makes_nothing(installed: Installed, command: tuple[str, ...]) -> None:
    before = sorted(installed.bin.iterdir())
    done = run(installed, "seglogd", *command)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "seglogd: The broker needs the package trio, which is missing: pip install 'seglog[broker]'\n",
    )
    assert sorted(installed.bin.iterdir()) == before


def test_what_the_daemon_does_offline_works_without_its_extra(installed: Installed, tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as stopped:
        made = run(installed, "seglog", "--server", stopped.address, "topic", "create", "t")
        assert made.returncode == 0, made.stderr
        sent = run(
            installed, "seglog", "--server", stopped.address, "produce", "t", "--compression", "lz4", stdin="a\n"
        )
        assert sent.returncode == 0, sent.stderr
        assert stopped.stop() == 0
    for command in (
        ["--version"],
        ["--check-config"],
        ["dump", str(tmp_path / "data")],
        ["check", str(tmp_path / "data")],
    ):
        done = run(installed, "seglogd", *command)
        assert done.returncode == 0, done.stderr
        assert done.stdout


MISSING: Final = {
    ("python", "-c", "import seglog.trio"): "seglog.trio needs the package trio, which is missing: {}[trio]'",
    ("python", "-c", "import seglog; seglog.read_arrow"): (
        "seglog.arrow needs the package pyarrow, which is missing: {}[arrow]'"
    ),
    ("seglog", "quickstart"): "seglog quickstart needs the package trio, which is missing: {}[broker]'",
    ("seglog", "load", "produce"): "seglog load needs the package trio, which is missing: {}[load]'",
    ("seglog", "top"): "seglog top needs the package rich, which is missing: {}[top]'",
    ("seglog", "spark", "report", "--topic", "t"): "jobs run on Spark, and the package pyarrow is missing: {}[spark]'",
}


@pytest.mark.parametrize("command", MISSING, ids=" ".join)
def test_a_module_and_a_command_name_their_extra(installed: Installed, command: tuple[str, ...]) -> None:
    done = run(installed, *command)
    prefix = "ModuleNotFoundError: " if command[0] == "python" else "seglog: "
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == prefix + MISSING[command].format("pip install 'seglog")
    assert command[0] == "python" or done.stderr.count("\n") == 1


def test_a_part_of_an_extra_is_not_enough(installed: Installed, tmp_path: Path) -> None:
    for name in ("trio", "structlog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    program = "import sys; sys.path.append(sys.argv.pop(1)); from seglog_broker.__main__ import main; sys.exit(main())"
    done = run(installed, "python", "-c", program, str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2,
        "seglogd: The broker needs the package numpy, which is missing: pip install 'seglog[broker]'\n",
    )
