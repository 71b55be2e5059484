"""Continuous backups in real stores of objects; and two machines with one store, of which one alone acknowledges."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.processes import children
from seglog_broker.storage.io import filenames
from tests.interop.object_stores import (
    ACCESS_KEY,
    SECRET_KEY,
    CuttingLink,
    Gateway,
    gateway,
    seaweed,
)
from tests.process.faults.losses import (
    MEGABYTES,
    SECONDS,
    Load,
    Promises,
    Watch,
    lose_again_and_again,
    make_topics,
    told_by,
)
from tests.processes import Daemon, kafka_daemon, seglog, wait_until

pytestmark = [pytest.mark.timeout(900)]

PLACE: Final = "s3://backups/seglog"
LEASE_MS: Final = 4_000

Store = Callable[[Path], AbstractContextManager[Any]]


def _use(patch: pytest.MonkeyPatch, store: Gateway | int) -> None:
    """Have programs that are started from now on use this one."""
    port = store.port if isinstance(store, Gateway) else store
    found = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}
    for name, value in (found | {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}).items():
        patch.setenv(name, value)


@pytest.mark.parametrize("store", [gateway, seaweed])
def test_a_lost_machine_comes_back_from_a_store(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    with store(tmp_path / "store") as running:
        _use(monkeypatch, running)
        lose_again_and_again(PLACE, tmp_path, f"seglog.backup.lease.ms={LEASE_MS}")


def _signal(running: Daemon, number: signal.Signals) -> None:
    """To a broker and what it has started, as when the machine is suspended."""
    assert running.process is not None
    for pid in (running.process.pid, *children(running.process.pid, "seglog_broker")):
        os.kill(pid, number)


@pytest.mark.parametrize("fault", ["cut off", "suspended"])
def test_the_first_machine_acknowledges_nothing_when_the_second_one_does(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (f"seglog.backup.to={PLACE}", "seglog.backup.lag.ms=2000", f"seglog.backup.lease.ms={LEASE_MS}")
    folders = [tmp_path / name for name in ("store", "first", "second")]
    for folder in folders:
        folder.mkdir()
    histories = [Promises(folder) for folder in folders[1:]]
    with (
        gateway(folders[0]) as store,
        closing(CuttingLink(store.port)) as link,
        ThreadPoolExecutor() as pool,
    ):
        _use(monkeypatch, link.port)
        with kafka_daemon(tmp_path / "data", *settings) as first:
            make_topics(first, is_small=MEGABYTES * SECONDS < 100)
            _use(monkeypatch, store)
            more = [flag for setting in (*settings, "listeners=PLAINTEXT://127.0.0.1:0") for flag in ("--set", setting)]
            second = Daemon(tmp_path / "standby", "--standby", "--from", PLACE, *more)
            serving = pool.submit(second.start)
            load, watch = Load(first, folders[1], MEGABYTES), Watch(told_by(first.address))
            ends = time.monotonic() + SECONDS
            try:
                wait_until(
                    lambda: time.monotonic() > ends and len({told.bound for told in watch.told}) > 2, "what is told"
                )
                wait_until((second.directory / filenames.STANDBY_SOCKET).exists, "the standby")
                link.cut_now() if fault == "cut off" else _signal(first, signal.SIGSTOP)
                promoted = seglog("", "promote", str(second.directory))
                assert promoted.returncode == 0, promoted
                serving.result()
                histories[0].take()
                histories[0].judge(second, max(told.bound for told in watch.told))
                following = Load(second, folders[2], MEGABYTES)
                try:
                    wait_until(lambda: histories[1].has_each, "promises of the second one")
                    link.mend() if fault == "cut off" else _signal(first, signal.SIGCONT)
                    assert first.process is not None
                    assert first.process.wait() == 1
                    first.process = None
                    assert "lease" in first.log_text()
                finally:
                    following.end()
            finally:
                watch.end()
                load.end()
                if second.process is not None:
                    second.kill()
    silent = (histories[1].times[0] - histories[0].times[-1]) / 1e9
    print(
        f"{fault}: {len(histories[0].times):,} promises, {silent:.1f} s without any, {len(histories[1].times):,} more"
    )
    assert silent > 0
