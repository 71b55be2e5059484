"""Commands as processes: what they are given, and that none outlives its time or the console."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from seglog_console import commands
from seglog_console.commands import BusyError, Commands, shell_text

TELLS: Final = """
import json, os, sys
file = sys.argv[sys.argv.index("--password-file") + 1]
told = {"argv": sys.argv[1:], "environment": dict(os.environ), "stdin": sys.stdin.read(), "secret": open(file).read()}
told["descriptors"] = [n for n in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{n}")]
print(json.dumps(told))
"""


def running(script: str, seconds: float = 60.0) -> Commands:
    return Commands([sys.executable, "-c", script], seconds)


def test_a_command_gets_its_words_and_the_password_over_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGLOG_USER", "the console's")
    words = ["--server", "b:9192", "topic", "create", "größe", "--config", "a=b c\n'\u202e"]
    outcome = asyncio.run(running(TELLS).run("me", words, b"from the form", "kept to itself"))
    told = json.loads(outcome.output)
    assert told["argv"][:1] + told["argv"][2:] == ["--password-file", *words]
    assert told["secret"] == "kept to itself"
    assert told["stdin"] == "from the form"
    assert "kept to itself" not in str([told["argv"], told["environment"], outcome.command])
    assert not [name for name in told["environment"] if name.startswith("SEGLOG")]
    assert told["environment"]["XDG_CONFIG_HOME"] == "/nonexistent"
    assert told["environment"]["PATH"] == os.environ["PATH"]


def test_a_shell_takes_the_text_of_a_command_as_the_words_that_run() -> None:
    words = ["a b", "it's", "größe", "$(x) `x` \\", "\x1b[2J\n\\'\u202e\U0001f600"]
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {shell_text(words)}"],
        env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True
    )  # fmt: skip
    assert printed.stdout.decode().split("\0")[:-1] == words


def test_of_much_output_the_first_part_is_kept() -> None:
    outcome = asyncio.run(running("print('x' * 200_000)").run("me", []))
    assert (len(outcome.output), outcome.cut, outcome.code) == (65_536, 200_001 - 65_536, 0)


def test_its_exit_code_is_told() -> None:
    assert asyncio.run(running("import sys; sys.exit('refused')").run("me", []))[1:] == (1, "refused\n", 0)


def test_what_does_not_end_is_killed() -> None:
    outcome = asyncio.run(running("import time; time.sleep(600)", seconds=0.1).run("me", []))
    assert outcome.code is None


def beginning(fifo: Path) -> str:
    """A script that says to ``fifo`` which process it is, and does not end."""
    return f"import os, time; open({str(fifo)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"


def pids_in(fifo: Path, count: int) -> list[int]:
    descriptor, lines = os.open(fifo, os.O_RDWR), b""  # as a writer, too: the file does not end between two others
    while lines.count(b"\n") < count:
        lines += os.read(descriptor, 1_000)
    os.close(descriptor)
    return [int(line) for line in lines.split()]


def test_a_browser_has_one_at_a_time_and_all_together_few_and_they_end_with_the_console(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "began")

    async def many() -> list[int | None]:
        runs = running(beginning(tmp_path / "began"))
        tasks = [asyncio.create_task(runs.run(f"browser {n}", [])) for n in range(commands.RUNNING_MAX + 1)]
        await asyncio.to_thread(pids_in, tmp_path / "began", commands.RUNNING_MAX)
        with pytest.raises(BusyError):
            await runs.run("browser 0", [])
        tasks.pop().cancel()
        runs.close()
        return [(await task).code for task in tasks]

    assert asyncio.run(many()) == [-9] * commands.RUNNING_MAX


def test_who_waits_no_more_ends_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "began")

    async def leave() -> int:
        task = asyncio.create_task(running(beginning(tmp_path / "began")).run("me", []))
        [process] = await asyncio.to_thread(pids_in, tmp_path / "began", 1)
        task.cancel()
        await asyncio.wait([task])
        return process

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(leave()), 0)
