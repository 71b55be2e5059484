"""The listener for health and metrics, asked as a probe and a scraper would."""

import http.client
import ssl
from typing import Final

from seglog.cli.checkups.model import Check, ok, unknown, warning
from seglog.core.dialing import Address

READY: Final = "/readyz"
HEALTH: Final = "/healthz"

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_UNAVAILABLE: Final = 503


def http_check(protocol: str, address: Address, context: ssl.SSLContext | None, seconds: float) -> Check:
    """Whether the pages answer, and to whom."""
    where = f"http ({protocol}) at {address}"
    try:
        ready, health = (_status(page, address, context, seconds) for page in (READY, HEALTH))
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return unknown("http", f"{where} was not asked: {reason}", "" if context is None else "give --ca")
    if health == _FORBIDDEN:
        return warning(
            "http",
            f"{where} shows {HEALTH} and /metrics to nobody here",
            "set seglog.http.token.file, and give Prometheus the token",
        )
    if ready == _UNAVAILABLE:
        return warning("http", f"{where} answers {READY} with 503: partitions are still recovering", "wait")
    token = ", /metrics with the token" if health == _UNAUTHORIZED else ""
    return ok("http", f"{where} answers probes and Prometheus{token}")


def _status(page: str, address: Address, context: ssl.SSLContext | None, seconds: float) -> int:
    host, port = address
    connection = (
        http.client.HTTPConnection(host, port, timeout=seconds)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
    )
    try:
        connection.request("GET", page)
        return connection.getresponse().status
    finally:
        connection.close()
