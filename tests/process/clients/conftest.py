"""Fixtures of the client's tests."""

from tests.unit.clients.cli.conftest import typed
from tests.unit.clients.conftest import _group_broker, broker, connect, face, group_broker

__all__ = ["_group_broker", "broker", "connect", "face", "group_broker", "typed"]
