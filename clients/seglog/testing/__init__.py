"""A real broker inside your tests: the daemon's own code, in this process, ready within milliseconds.

    from seglog.testing import Broker

    with Broker() as broker:
        run_my_program(broker.address)  # or broker.kafka_address, for Kafka's clients
        assert [record.value for record in broker.records("orders")] == [b"one"]

It needs the extra ``testing``. docs/TESTING.md has the recipes; ``seglog.testing.plugin`` are fixtures for pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from seglog.testing.async_broker import AsyncBroker
    from seglog.testing.broker import Broker
    from seglog.testing.errors import BrokerStoppedError, NotArrivedError, NotPossibleError

__all__ = ["AsyncBroker", "Broker", "BrokerStoppedError", "NotArrivedError", "NotPossibleError"]

_HOMES: Final = {
    "AsyncBroker": "seglog.testing.async_broker",
    "Broker": "seglog.testing.broker",
    "BrokerStoppedError": "seglog.testing.errors",
    "NotArrivedError": "seglog.testing.errors",
    "NotPossibleError": "seglog.testing.errors",
}


def __getattr__(name: str) -> Any:
    # On first use, because pytest imports this package in every run, for the plugin.
    if name not in _HOMES:
        raise AttributeError(f"module 'seglog.testing' has no attribute {name!r}")
    from seglog_protocol.extras import missing  # noqa: PLC0415 - the package itself imports nothing

    if (error := missing("seglog.testing", "testing")) is not None:
        raise error
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
