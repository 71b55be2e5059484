"""What is counted of the requests and connections of a listener."""

import re
from collections import Counter
from functools import cache
from time import perf_counter
from typing import Final

from seglog_broker.runtime.histogram import Histogram

NATIVE: Final = "native"
"""The label of the listener of our own protocol; one of Kafka's has its configured name, in capitals."""

HTTP: Final = "http"
"""The label of the listener for HTTP."""


UNKNOWN: Final = "unknown"
"""The label of requests whose api the protocol does not have."""


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
        """From the moment a request is taken up until its answer is queued; what it waits for is part of it. What gets
        no answer, because its peer has left, is not counted."""

    def note_request(self, size: int) -> None:
        """Count a request, whose frame has ``size`` bytes."""
        self.requests += 1
        self.request_bytes += size

    def note_answers(self, count: int, size: int, began: float) -> None:
        """Count answers of ``size`` bytes together to requests that were taken up at ``began``, by ``perf_counter``."""
        self.response_bytes += size
        self.seconds.add_many(perf_counter() - began, count)


class ListenerMetrics:
    """Counts of one listener. Its names of apis are those of its protocol, which bounds them."""

    __slots__ = (
        "apis",
        "authentication_failures",
        "authentications",
        "connections",
        "connections_accepted",
        "errors",
        "name",
    )

    def __init__(self, name: str) -> None:
        """``name`` is the label ``listener``."""
        self.name = name
        self.apis: dict[str, ApiMetrics] = {}
        """Of each api that was asked for, by its name."""
        self.errors: Counter[str] = Counter()
        """In the last frames of connections, which answer no request, by code; the label ``api`` is empty."""
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


@cache
def flat_name(api: str) -> str:
    """The name of an api in the flat reply to ``metrics``: of Kafka's ListOffsets ``kafka_list_offsets``.

    Produce is an ``append`` there, and a page over HTTP is ``http_metrics``.
    """
    if api.startswith("/"):
        return f"http_{api[1:]}"
    if api == "Produce":
        return "append"
    return "kafka_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).lower() if api[:1].isupper() else api
