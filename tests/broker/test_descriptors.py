"""Descriptors are shared: logs have theirs, something is kept for operators, connections get the rest."""

import resource
from collections.abc import Callable

import pytest

from seglog_broker.config import BrokerConfig
from seglog_broker.descriptors import CONNECTIONS_MIN, RESERVED, connections_max, raise_limit

Grant = Callable[[int, int], None]


@pytest.fixture
def grant(monkeypatch: pytest.MonkeyPatch) -> Grant:
    """Lets the system grant a soft and a hard limit."""
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


def test_connections_get_what_logs_and_the_reserve_leave(grant: Grant) -> None:
    grant(1024, 1024)
    assert connections_max(BrokerConfig()) == 1024 - 512 - RESERVED
    assert connections_max(BrokerConfig(seglog_handles_max=100)) == 1024 - 100 - RESERVED
    assert connections_max(BrokerConfig(seglog_connections_max=50)) == 50


def test_a_few_connections_are_allowed_in_any_case(grant: Grant) -> None:
    grant(256, 256)
    assert connections_max(BrokerConfig()) == CONNECTIONS_MIN


@pytest.mark.parametrize("limit", [20_000, resource.RLIM_INFINITY])
def test_where_there_are_enough_the_key_alone_counts(grant: Grant, limit: int) -> None:
    grant(limit, limit)
    assert connections_max(BrokerConfig()) == 10_000
    assert raise_limit(BrokerConfig()) == []


def test_the_soft_limit_is_raised_as_far_as_it_goes(grant: Grant) -> None:
    grant(1024, 20_000)
    assert raise_limit(BrokerConfig()) == []
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (20_000, 20_000)


def test_too_few_are_told_with_what_is_left_for_connections(grant: Grant) -> None:
    grant(256, 1024)
    [warning] = raise_limit(BrokerConfig())
    assert "only 1024 open files" in warning
    assert "384 connections" in warning
