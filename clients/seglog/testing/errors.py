"""What goes wrong with a broker in tests, apart from what its clients are told."""


class BrokerStoppedError(RuntimeError):
    """The broker is not running: it was not started, was stopped or crashed, or belongs to another process."""


class NotPossibleError(RuntimeError):
    """This kind of broker cannot do that; the message says which can."""


class NotArrivedError(AssertionError):
    """Records that were waited for did not come in time; the message says which did."""
