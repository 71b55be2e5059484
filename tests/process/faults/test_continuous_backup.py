"""A machine is lost under load, again and again: what was told to be safe is restored, and clients go on.

``SEGLOG_LOSSES``, ``SEGLOG_LOSS_SECONDS`` (between two of them, at most) and ``SEGLOG_LOSS_MB`` (a second) make it
longer; 10, 60 and 20 are what was run by hand.
"""

from pathlib import Path

import pytest

from tests.process.faults.losses import LOSSES, SECONDS, lose_again_and_again

pytestmark = pytest.mark.timeout(600 + int(LOSSES * SECONDS * 5))


def test_what_was_told_to_be_safe_is_restored_each_time_and_clients_go_on(tmp_path: Path) -> None:
    lose_again_and_again(str(tmp_path / "backup"), tmp_path)
