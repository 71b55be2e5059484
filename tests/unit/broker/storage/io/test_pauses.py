"""Walks over one file stop for other tasks, and so many of them are remembered."""

import pytest

from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.pauses import PAUSES_MAX, Pauses, TurnWantedError
from seglog_broker.testing.forgetful import ForgetfulFileSystem


def test_of_very_many_walks_over_a_file_the_newest_are_remembered() -> None:
    only_warm = HandlePool(ForgetfulFileSystem(), 1).only_warm
    pauses = Pauses(only_warm)
    with only_warm:
        for number in range(2 * PAUSES_MAX):
            with pytest.raises(TurnWantedError):
                pauses.pause((number,), number)
        remembered = [number for number in range(2 * PAUSES_MAX) if pauses.resume((number,), None) is not None]
    assert remembered == list(range(PAUSES_MAX, 2 * PAUSES_MAX))
