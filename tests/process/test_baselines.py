"""Log directories of every release are opened by this version; one of this version by the code of the last release."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import make_baseline
from scripts.make_baseline import REPOSITORY
from seglog_broker.storage.directory.identity import UNNAMED
from seglog_protocol.version import VERSION
from tests.support import missing

BASELINES = REPOSITORY / "tests" / "baselines"
RELEASES = sorted((path.name for path in BASELINES.iterdir()), key=lambda name: [int(part) for part in name.split(".")])


def expected(release: str, kind: str) -> Any:
    return json.loads((BASELINES / release / "contents.json").read_text(encoding="utf-8"))[kind]


def what_a_start_changes(data: Path) -> str:
    """What `seglogd --check-config` prints of a directory, which it leaves as it is."""
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    told = subprocess.run(
        [sys.executable, "-m", "seglog_broker", "--check-config", "--data", str(data)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    return told


def _names_itself(data: Path) -> bool:
    return "written_by" in json.loads((data / "seglog-topics.json").read_bytes())


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", ["clean", "unclean"])
def test_a_directory_of_a_release_has_all_its_records_offsets_and_accounts(
    release: str, kind: str, tmp_path: Path
) -> None:
    data = make_baseline.unpack(BASELINES / release / f"{kind}.tar.gz", tmp_path)
    said = what_a_start_changes(data)
    if release == VERSION:
        assert f"{data} was last written by this version, " in said
    else:
        assert f"{data} was last written by seglog {release if _names_itself(data) else UNNAMED}; this is " in said
        assert "The next start changes there:\n  seglog-topics.json names " in said
    with make_baseline.serving(REPOSITORY, data) as (address, daemon):
        assert f"{data} was last written by this version, " in what_a_start_changes(data)
        assert make_baseline.contents_of(address) == expected(release, kind)
        make_baseline.stop(daemon)
    with make_baseline.serving(REPOSITORY, data) as (address, _):
        assert make_baseline.contents_of(address) == expected(release, kind), "also after a stop of this version"
    assert {line.split()[0] for line in make_baseline.accounts(REPOSITORY, data).splitlines()} >= {"admin", "alice"}


@pytest.mark.soak
def test_the_last_release_opens_a_directory_of_this_version(tmp_path: Path) -> None:
    """A downgrade: what this version has written is read by the code before it, and goes on there."""
    last = [release for release in RELEASES if release != VERSION][-1]
    commit = (BASELINES / last / "commit").read_text(encoding="utf-8").strip()
    try:
        code = make_baseline.code_of(commit, tmp_path / "code")
    except (OSError, subprocess.CalledProcessError):
        missing(f"history: no commit {commit} of {last}")
        return
    data = tmp_path / "data"
    make_baseline.add_account(REPOSITORY, data)
    with make_baseline.serving(REPOSITORY, data) as (address, daemon):
        make_baseline.fill(address)
        before = make_baseline.contents_of(address)
        make_baseline.stop(daemon)
    with make_baseline.serving(code, data) as (address, _):
        assert make_baseline.contents_of(address) == before
        make_baseline.fill_more(address)
        after = make_baseline.contents_of(address)
    with make_baseline.serving(REPOSITORY, data) as (address, _):  # which was killed
        assert make_baseline.contents_of(address) == after
    assert make_baseline.accounts(code, data) == make_baseline.accounts(REPOSITORY, data)
