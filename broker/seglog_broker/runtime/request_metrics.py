"""What is counted of the requests and connections of a listener."""

from collections import Counter
from typing import Final

from seglog_broker.runtime.histogram import Histogram

NATIVE: Final = "native"
"""The label of the listener of our own protocol; one of Kafka's has its configured name, in capitals."""

HTTP: Final = "http"
"""The label of the listener for HTTP."""


class ApiMetrics:
    """Counts of the requests of one api on one listener."""

    __slots__ = ("api", "errors", "request_bytes", "requests", "response_bytes", "seconds")

    def __init__(self, api: str) -> None:
        """``api`` is the name of Kafka's ApiKey, such as ``Produce``, or that of a native api, such as ``append``."""
        self.api = api
        self.requests = 0
        """Received, as soon as it is known what they ask."""
        self.request_bytes = 0
        self.response_bytes = 0
        """With the records in them."""
        self.errors: Counter[str] = Counter()
        """In answers, those of single partitions included, by the code of the wire."""
        self.seconds = Histogram()
        """From the beginning of the turn in which a request was received until its answer is queued; what it waits
        for is part of it."""


class ListenerMetrics:
    """Counts of one listener. Its names of apis are those of its protocol, which bounds them."""

    __slots__ = ("apis", "authentication_failures", "authentications", "connections", "connections_accepted", "name")

    def __init__(self, name: str) -> None:
        """``name`` is the label ``listener``."""
        self.name = name
        self.apis: dict[str, ApiMetrics] = {}
        """Of each api that was asked for, by its name."""
        self.connections = 0
        """Open now."""
        self.connections_accepted = 0
        """Without those that were refused because there were too many."""
        self.authentications: Counter[str] = Counter()
        """Clients that have proven who they are, by mechanism; TLS for a certificate."""
        self.authentication_failures: Counter[str] = Counter()
        """Proofs that were refused, by mechanism."""

    def of(self, api: str) -> ApiMetrics:
        """The counts of an api."""
        found = self.apis.get(api)
        if found is None:
            found = self.apis[api] = ApiMetrics(api)
        return found
