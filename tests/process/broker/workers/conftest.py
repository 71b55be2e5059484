"""Fixtures of the tests with worker processes."""

from tests.unit.broker.workers.conftest import _no_process_left, _this_checkout

__all__ = ["_no_process_left", "_this_checkout"]
