"""Completion in shells, as their scripts ask for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seglog.cli import main
from seglog.cli.completion import PATIENCE_VARIABLE, SHELLS
from seglog.testing import Broker
from tests.processes import clean_environment
from tests.support import each_case, missing
from tests.unit.clients.fake_broker import SILENCE, FakeBroker, fake_broker
from tests.unit.clients.fake_groups import FakeGroup, FakeGroups

TOPICS = {"clicks": 1, "clients": 2, "other": 1}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker(topics=TOPICS) as running:
        groups = FakeGroups(running)
        groups.groups = {"app": FakeGroup(), "archiver": FakeGroup(), "other": FakeGroup()}
        running.script = groups.answer
        yield running


@pytest.fixture
def offered(
    broker: FakeBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[str]]:
    """What the command offers the script of a shell for the last of some words, which may be empty."""

    def complete(words: str, shell: str = "bash", patience: str = "60") -> list[str]:
        count = len(words.split()) - (not words.endswith(" "))
        for name, value in {
            "SEGLOG_SERVER": broker.address,
            "_SEGLOG_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
            PATIENCE_VARIABLE: patience,
        }.items():
            monkeypatch.setenv(name, value)
        main([])
        sys.stdout.flush()
        out, errors = capfd.readouterr()
        assert errors == ""
        return [line.removeprefix("plain,") for line in out.split()]

    return complete


def test_bash_is_offered_what_its_script_asks_for(broker: FakeBroker, tmp_path: Path) -> None:
    shell = shutil.which("bash")
    if shell is None:
        missing("bash: completion is asked for through it")
    program = tmp_path / "bin" / "seglog"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m seglog.cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    script = (
        'eval "$(seglog completion bash)"; complete -p seglog >&2; '
        'COMP_WORDS=(seglog consume cli); COMP_CWORD=2; _seglog_completion seglog; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [str(shell), "--norc", "-c", script],
        env=clean_environment(SEGLOG_SERVER=broker.address, PATH=path, **{PATIENCE_VARIABLE: "60"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == "complete -o nosort -F _seglog_completion seglog\n"
    assert done.stdout.split() == ["clicks", "clients"]


@each_case(
    ("words", "expected"),
    [
        ("seglog to", ["topic", "top"]),
        ("seglog topic de", ["describe", "delete"]),
        ("seglog consume --o", ["--on-out-of-range", "--offsets"]),
        ("seglog produce t --ack ", ["none", "os", "disk"]),
        ("seglog consume cli", ["clicks", "clients"]),
        ("seglog topic describe o", ["other"]),
        ("seglog spark archive --topic cl", ["clicks", "clients"]),
        ("seglog completion ", ["bash", "zsh", "fish"]),
        ("seglog group describe a", ["app", "archiver"]),
        ("seglog group delete app arch", ["archiver"]),
        ("seglog group reset app --to latest --topic cl", ["clicks", "clients"]),
    ],
)
def test_commands_options_values_topics_and_groups_are_offered(
    offered: Callable[[str], list[str]], words: str, expected: list[str]
) -> None:
    assert offered(words) == expected


@pytest.mark.parametrize("is_there", [True, False], ids=["silent", "away"])
def test_without_an_answer_no_topic_is_offered_and_nothing_is_said(
    broker: FakeBroker, offered: Callable[..., list[str]], is_there: bool
) -> None:
    if is_there:
        broker.script = lambda _request, _payload: SILENCE
    else:
        broker.stop()
    assert offered("seglog consume cli", patience="0.1") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_is_one_by_its_own_word(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_SEGLOG_COMPLETE={shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_names_of_metrics_are_those_of_the_broker(offered: Callable[..., list[str]]) -> None:
    with Broker(memory=True) as real:
        named = offered(f"seglog --server {real.address} metrics seglog_disk_f")
        assert {"seglog_disk_full", "seglog_disk_free_bytes"} <= set(named)
        assert offered(f"seglog --server {real.address} metrics nothing") == []
