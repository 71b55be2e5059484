"""`make wheels`: it builds what the Pythons of the machine can build, and says of the others why not."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from hatch_build import NEXT_RELEASE
from tests.processes import finished
from tests.support import REPOSITORY

BUILDS: Final = """#!/bin/sh
case "$*" in
    *venv*) /bin/mkdir -p "$4/bin" && /bin/ln -s "$0" "$4/bin/python" ;;
    *wheel*)
        test "$HATCH_BUILD_HOOKS_ENABLE" = true || exit 3
        : > dist/seglog-0.1.0-cp312-cp312-linux_x86_64.whl
        ;;
esac
"""
"""A Python that makes an environment with itself in it, and a wheel if it is asked for a compiled one."""

DOES_NOT_RUN: Final = """#!/bin/sh
echo "python3.13: command not found" >&2
echo "but others are there" >&2
exit 127
"""

FAILS: Final = """#!/bin/sh
test "$1" = -c
"""


def wheels(folder: Path, pythons: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the script in a project of its own with nothing in it, and these programs alone on PATH."""
    script = folder / "project" / "scripts" / "wheels.py"
    script.parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / "scripts" / "wheels.py", script)
    old = folder / "project" / "dist" / "seglog-0.0.9-py3-none-any.whl"
    old.parent.mkdir()
    old.touch()
    programs = folder / "bin"
    programs.mkdir()
    for name, text in pythons.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    done = finished([sys.executable, script], environment={"PATH": str(programs)})
    assert not old.exists(), "what an older version left"
    return done


def test_each_wheel_has_a_line_with_its_name_or_the_reason_why_there_is_none(tmp_path: Path) -> None:
    done = wheels(tmp_path, {"python3.12": BUILDS, "python3.13": DOES_NOT_RUN, "python3.14": FAILS})
    pure, *compiled = done.stdout.splitlines()[-5:]
    assert pure.startswith("pure: not built, `")  # there is no project to build
    assert pure.endswith(" pip wheel --no-deps --wheel-dir dist .` ended with 1, its output is above")
    environment = tmp_path / "project" / "build" / "wheels" / "3.14"
    assert compiled == [
        "3.11: not built, there is no python3.11 on PATH",
        "3.12: dist/seglog-0.1.0-cp312-cp312-linux_x86_64.whl",
        "3.13: not built, python3.13 does not run: python3.13: command not found",
        f"3.14: not built, `python3.14 -m venv --clear {environment}` ended with 1, its output is above",
    ]
    assert done.returncode == 0


def test_a_build_is_named_after_the_next_release_and_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*command: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@example")
        return subprocess.check_output(["git", "-C", tmp_path, *named, *command], text=True)

    def version() -> str:
        told = "import hatch_build; print(hatch_build.version_of_build())"
        return subprocess.run(
            [sys.executable, "-c", told], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    script = tmp_path / "hatch_build.py"
    shutil.copy(REPOSITORY / "hatch_build.py", script)
    assert version() == f"{NEXT_RELEASE}.dev0\n"
    monkeypatch.setenv("SEGLOG_COMMIT", "7fbf4eb2a0a0a0a0")
    assert version() == f"{NEXT_RELEASE}.dev0+g7fbf4eb2\n", "as the build of an image says it, which has no history"
    git("init", "--quiet")
    git("add", "hatch_build.py")
    for message in ("the first one sets the release", "one more", "another"):
        git("commit", "--quiet", "--allow-empty", "--message", message)
    commit = git("rev-parse", "--short=8", "HEAD").strip()
    assert version() == f"{NEXT_RELEASE}.dev2+g{commit}\n"
    script.write_text(script.read_text() + "\n# changed\n", encoding="utf-8")
    assert version() == f"{NEXT_RELEASE}.dev2+g{commit}.dirty\n"
    script.write_text(script.read_text().replace("IS_RELEASE = False", "IS_RELEASE = True"), encoding="utf-8")
    assert version() == f"{NEXT_RELEASE}\n"
