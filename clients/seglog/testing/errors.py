"""What goes wrong with a broker in tests, apart from what its clients are told."""

from seglog_broker.testing.in_process import BrokerStoppedError

__all__ = ["BrokerStoppedError", "NotArrivedError", "NotPossibleError"]


class NotPossibleError(RuntimeError):
    """This kind of broker cannot do that; the message says which can."""


class NotArrivedError(AssertionError):
    """Records that were waited for did not come in time; the message says which did."""
