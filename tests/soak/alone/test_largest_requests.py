"""The largest request of each api of both wires, one by one: none holds the loop, none gets more than its bound."""

import sys
from pathlib import Path

import pytest

from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX
from tests.process.faults.largest_requests import KAFKA, costs, prepare
from tests.processes import daemon
from tests.turns import judge_turn, judges_turns, reference_seconds

OF_MEMBERS = "ConsumerGroupHeartbeat: many names"
"""20,000 names that one member subscribes to are sorted and compared in one turn still."""


@pytest.mark.timeout(900)
@judges_turns
def test_no_request_holds_the_loop(tmp_path: Path) -> None:
    with daemon(
        tmp_path / "data", *KAFKA, under=[sys.executable, "-m", "tests.process.faults.metered_daemon"]
    ) as running:
        references = [reference_seconds()]
        found = []
        for cost in costs(running, prepare(running, partitions=500)):
            references.append(reference_seconds())
            found.append(cost)
        assert len(found) > 80
        assert max(cost.response_bytes for cost in found) < RESPONSE_BYTES_MAX
        assert not [cost.title for cost in found if cost.title.endswith("(closed)")], "all are answered"
        assert running.stop() == 0
        longest = max((cost for cost in found if not cost.title.startswith(OF_MEMBERS)), key=lambda cost: cost.turn_ms)
        judge_turn(longest.turn_ms / 1000, longest.title, references)
