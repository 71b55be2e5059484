"""Completion in shells, as their scripts ask for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog.cli.completion import PATIENCE_VARIABLE, SHELLS
from tests.processes import Daemon, clean_environment
from tests.support import missing
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
def environment(broker: FakeBroker, tmp_path: Path) -> dict[str, str]:
    """A user who has `seglog` on the PATH and a broker beside."""
    program = tmp_path / "bin" / "seglog"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m seglog.cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return clean_environment(SEGLOG_SERVER=broker.address, PATH=path, **{PATIENCE_VARIABLE: "60"})


def complete(words: str, environment: dict[str, str]) -> list[str]:
    """What bash offers for the last of the words, which may be empty, asked through the script for bash."""
    shell = shutil.which("bash")
    if shell is None:
        missing("bash: completion is asked for through it")
    script = (
        'eval "$(seglog completion bash)"; complete -p seglog >&2; '
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _seglog_completion seglog; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [str(shell), "--norc", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "complete -o nosort -F _seglog_completion seglog\n"
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("seglog to", ["topic", "top"]),
        ("seglog topic de", ["describe", "delete"]),
        ("seglog consume --o", ["--on-out-of-range", "--offsets"]),
        ("seglog produce t --ack ''", ["none", "os", "disk"]),
        ("seglog consume cli", ["clicks", "clients"]),
        ("seglog topic describe o", ["other"]),
        ("seglog spark archive --topic cl", ["clicks", "clients"]),
        ("seglog completion ''", ["bash", "zsh", "fish"]),
        ("seglog group describe a", ["app", "archiver"]),
        ("seglog group delete app arch", ["archiver"]),
        ("seglog group reset app --to latest --topic cl", ["clicks", "clients"]),
    ],
)
def test_bash_is_offered_commands_options_values_topics_and_groups(
    environment: dict[str, str], words: str, offered: list[str]
) -> None:
    assert complete(words, environment) == offered


def test_topics_are_those_of_the_server_that_was_typed(environment: dict[str, str]) -> None:
    with fake_broker(topics={"elsewhere": 1}) as another:
        asked = environment | {
            "_SEGLOG_COMPLETE": "zsh_complete",
            "COMP_WORDS": f"seglog --server {another.address} consume ",
            "COMP_CWORD": "4",
        }
        done = subprocess.run(["seglog"], env=asked, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.split()[:2], done.stderr) == (["plain", "elsewhere"], "")


@pytest.mark.parametrize("is_there", [True, False], ids=["silent", "away"])
def test_without_an_answer_no_topic_is_offered_and_nothing_is_said(
    broker: FakeBroker, environment: dict[str, str], is_there: bool
) -> None:
    if is_there:
        broker.script = lambda _request, _payload: SILENCE
    else:
        broker.stop()
    assert complete("seglog consume cli", environment | {PATIENCE_VARIABLE: "0.1"}) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_is_one_by_its_own_word(shell: str, environment: dict[str, str]) -> None:
    made = subprocess.run(
        ["seglog", "completion", shell], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert f"_SEGLOG_COMPLETE={shell}_complete" in made.stdout
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run([program, "-n"], input=made.stdout, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_another_shell_is_a_usage_error(environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["seglog", "completion", "tcsh"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("seglog: SHELL: 'tcsh' is not one of 'bash', 'zsh', 'fish'\n")


def test_names_of_metrics_are_those_of_the_broker(environment: dict[str, str], shared: Daemon) -> None:
    asked = environment | {"SEGLOG_SERVER": shared.address}
    assert {"seglog_disk_full", "seglog_disk_free_bytes"} <= set(complete("seglog metrics seglog_disk_f", asked))
    assert complete("seglog metrics nothing", asked) == []
