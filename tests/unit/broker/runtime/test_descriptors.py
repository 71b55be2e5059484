"""Descriptors are shared: some are for logs, some are kept for operators, connections get the rest."""

import os
import resource
from collections.abc import Callable

import pytest

from seglog_broker.config import BrokerConfig
from seglog_broker.runtime import descriptors

Grant = Callable[[int, int], None]


@pytest.fixture
def grant(monkeypatch: pytest.MonkeyPatch) -> Grant:
    """Set the soft and the hard limit that the system grants."""
    limits = [0, 0]

    def get(_: int) -> tuple[int, int]:
        return limits[0], limits[1]

    def put(_: int, wanted: tuple[int, int]) -> None:
        limits[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", get)
    monkeypatch.setattr(resource, "setrlimit", put)

    def set_both(soft: int, hard: int) -> None:
        limits[:] = soft, hard

    return set_both


@pytest.mark.parametrize(
    ("limit", "settings", "connections"),
    [
        (1024, {}, 1024 - 512 - descriptors.RESERVED),
        (1024, {"seglog_handles_max": 100}, 1024 - 100 - descriptors.RESERVED),
        (1024, {"seglog_connections_max": 50}, 50),
        (256, {}, descriptors.CONNECTIONS_MIN),
        (20_000, {}, 10_000),
        (resource.RLIM_INFINITY, {}, 10_000),
    ],
)
def test_connections_get_what_logs_and_the_reserve_leave(
    grant: Grant, limit: int, settings: dict[str, int], connections: int
) -> None:
    grant(limit, limit)
    assert descriptors.connections_max(BrokerConfig(**settings)) == connections  # type: ignore[arg-type] # numbers all
    assert limit < 20_000 or descriptors.raise_limit(BrokerConfig()) == []


def test_the_soft_limit_is_raised_as_far_as_it_goes(grant: Grant) -> None:
    grant(1024, 20_000)
    assert descriptors.raise_limit(BrokerConfig()) == []
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (20_000, 20_000)


def test_too_few_descriptors_are_reported_with_what_is_left_for_connections(grant: Grant) -> None:
    grant(256, 1024)
    [warning] = descriptors.raise_limit(BrokerConfig())
    assert "only 1024 open files" in warning
    assert "384 connections" in warning


@pytest.mark.parametrize("limit", [40, 64, 96, 160, 256, 500, 700, 1024, 4096])
def test_logs_never_take_what_connections_and_a_stop_need(grant: Grant, limit: int) -> None:
    grant(limit, limit)
    config = BrokerConfig()
    files, excess = descriptors.handles_max(config), descriptors.handles_excess_max(config)
    assert files >= descriptors.HANDLES_MIN
    assert excess >= descriptors.EXCESS_MIN
    if limit >= 64:
        assert files + excess + descriptors.CONNECTIONS_MIN + min(descriptors.STOP_RESERVE, limit // 8) < limit
    assert files + descriptors.connections_max(config) + descriptors.RESERVED <= max(
        limit, descriptors.HANDLES_MIN + descriptors.CONNECTIONS_MIN + descriptors.RESERVED
    )


@pytest.mark.parametrize(
    ("limit", "handles"), [(1024, 512), (4096, 512), (8192, 1024), (20_000, 2048), (resource.RLIM_INFINITY, 2048)]
)
def test_logs_get_a_thousand_files_and_more_where_connections_have_enough(
    grant: Grant, limit: int, handles: int
) -> None:
    grant(limit, limit)
    assert descriptors.handles_max(BrokerConfig()) == handles
    for fewer in (1, 100):
        assert descriptors.handles_max(BrokerConfig(seglog_handles_max=fewer)) == fewer


def test_the_reserve_of_the_stop_is_held_until_then(grant: Grant) -> None:
    grant(1024, 1024)
    before = os.dup(0)
    os.close(before)
    reserve = descriptors.StopReserve()
    taken = os.dup(0)
    os.close(taken)
    assert taken >= before + descriptors.STOP_RESERVE
    reserve.release()
    reserve.release()
    after = os.dup(0)
    os.close(after)
    assert after == before
