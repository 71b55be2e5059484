"""Hostile requests beside a healthy client: the client is not affected, and the broker reports no bug."""

import os
from pathlib import Path
from typing import Any

import pytest

from seglog_protocol.batch_builder import encode_batch
from tests.faults.asking import Asking
from tests.faults.besieged import SETTINGS, Healthy, beset, judge, make_topics
from tests.processes import Daemon, daemon
from tests.support import soak_scaled, soak_seed


class HealthyClient(Healthy):
    """It speaks the native protocol."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._asking = Asking(port)

    def append_and_fetch(self) -> None:
        batch = encode_batch([(-1, b"key", b"value", ())])
        place = {"topic": "healthy", "partition": 0}
        reply, _ = self._asking.ask({"api": "append", "partitions": [place | {"size": len(batch)}], "ack": "os"}, batch)
        assert "error" not in reply["partitions"][0], reply
        offset = reply["partitions"][0]["base_offset"]
        reply, size = self._asking.ask({"api": "fetch", "partitions": [place | {"offset": offset}], "max_wait_ms": 0})
        assert reply["partitions"][0].get("offset") == offset, reply
        assert size == len(batch)

    def close(self) -> None:
        self._asking.close()


def beset_natively(running: Daemon, mutated: int, hostile: int, seed: int) -> dict[str, Any]:
    make_topics(running)
    peer = ("tests.faults.hostile_peer", str(running.port))
    return beset(running, HealthyClient(running.port), peer, mutated, hostile, seed)


@pytest.mark.slow
@pytest.mark.alone
def test_a_few_thousand_hostile_requests_affect_no_other_client(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", *SETTINGS) as running:
        judge(running, beset_natively(running, mutated=4_000, hostile=300, seed=1))


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(14_400)
def test_very_many_hostile_requests_affect_no_other_client(tmp_path: Path) -> None:
    """SEGLOG_SOAK_MUTATED and SEGLOG_SOAK_HOSTILE say how many; otherwise the minutes of the soak do."""
    mutated = int(os.environ.get("SEGLOG_SOAK_MUTATED") or soak_scaled(120_000))
    hostile = int(os.environ.get("SEGLOG_SOAK_HOSTILE") or soak_scaled(12_000))
    with daemon(tmp_path / "data", *SETTINGS) as running:
        judge(running, beset_natively(running, mutated=mutated, hostile=hostile, seed=soak_seed()))
