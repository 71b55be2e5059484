"""A real broker inside your tests: the daemon's own code, in this process, ready within milliseconds.

    from seglog.testing import Broker

    with Broker() as broker:
        run_my_program(broker.address)  # or broker.kafka_address, for Kafka's clients
        assert [record.value for record in broker.records("orders")] == [b"one"]

It needs the extra ``testing``. docs/TESTING.md has the recipes; ``seglog.testing.plugin`` are fixtures for pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seglog.testing.broker import AsyncBroker, Broker, BrokerStoppedError, NotArrivedError, NotPossibleError

__all__ = ["AsyncBroker", "Broker", "BrokerStoppedError", "NotArrivedError", "NotPossibleError"]


def __getattr__(name: str) -> Any:
    # On first use, because pytest imports this package in every run, for the plugin.
    if name not in __all__:
        raise AttributeError(f"module 'seglog.testing' has no attribute {name!r}")
    from seglog_protocol.extras import missing  # noqa: PLC0415 - the package itself imports nothing

    if (error := missing("seglog.testing", "testing")) is not None:
        raise error
    value = getattr(import_module("seglog.testing.broker"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
