"""Listeners as this client sees them: can they be reached, can what they advertise, and to whom do pages answer."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from seglog.cli.checkups.model import Check, ok, problem, unknown, warning
from seglog.core.dialing import Address, parse_address
from seglog.core.security import Tls, is_loopback
from seglog.tls_contexts import context_of
from seglog_protocol.extras import missing

if TYPE_CHECKING:
    from seglog.core.security import Target
    from seglog_protocol.messages import DescribedListener, HelloReply

SECONDS: Final = 3.0
"""For one connection: a firewall that drops packets is told from a slow network by then."""

LISTENERS_MAX: Final = 16
"""Those that are tried; each may take some seconds."""

HTTP: Final = "http"
"""The name of the listener for health and metrics."""

READY: Final = "/readyz"
HEALTH: Final = "/healthz"

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_UNAVAILABLE: Final = 503

_EVERY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to be recognised


def listener_checks(hello: "HelloReply", listeners: "list[DescribedListener]", target: "Target") -> Iterator[Check]:
    """A line for each socket; of Kafka's another for what it advertises.

    ``target`` is that of the options: with its account and its files Kafka's listeners are asked, too.
    """
    here = target.address
    for listener in listeners[:LISTENERS_MAX]:
        name = listener.name or "seglog.listen"
        bound = parse_address(listener.address)
        if not listener.name and bound.port == here.port:
            yield ok("ports", f"{name} ({listener.protocol}) is reached at {here}")
            continue
        seen = _seen(bound, here)
        if seen is None:
            yield ok("ports", f"{name} ({listener.protocol}) is for programs on the broker's machine: {bound}")
            continue
        why = why_unreachable(seen, SECONDS)
        if why is not None:
            yield warning(
                "ports",
                f"{name} ({listener.protocol}) listens at {bound}, and is not reached from here at {seen}: {why}",
                "open the port in firewalls, publish it from the container, or run doctor where its clients are",
            )
            continue
        yield ok("ports", f"{name} ({listener.protocol}) is reached at {seen}")
        if listener.name == HTTP:
            try:
                context = None
                if listener.protocol.endswith("SSL"):
                    context = context_of(target.tls or Tls())
            except (OSError, ValueError) as error:
                yield unknown("http", f"http at {seen} was not asked: {error}", "give --ca as Prometheus has it")
            else:
                yield http_check(listener.protocol, seen, context, SECONDS)
        elif listener.name:
            yield _advertised(listener, seen, hello.cluster_id, target)
    if len(listeners) > LISTENERS_MAX:
        yield unknown("ports", f"{len(listeners) - LISTENERS_MAX} more listeners were not tried")


def _seen(bound: Address, here: Address) -> Address | None:
    """Where a client that has reached ``here`` finds a socket; None for one on the broker's machine alone."""
    if bound.host in _EVERY:
        return bound._replace(host=here.host)
    return None if is_loopback(bound.host) and not is_loopback(here.host) else bound


def _advertised(listener: "DescribedListener", seen: Address, cluster_id: str, target: "Target") -> Check:
    """What clients are told to connect to, and whether this broker answers there."""
    name = f"{listener.name} tells Kafka's clients to connect to"
    if (error := missing("asking as Kafka's clients do", "kafka")) is not None:
        return _told_without_login(listener, name, seen, str(error))
    from seglog.mirror.cluster import ask_metadata

    try:
        answer = ask_metadata(listener, seen, target, SECONDS)
    except ValueError as error:
        return _told_without_login(listener, name, seen, str(error))
    except OSError as error:
        found = f"{listener.name} ({listener.protocol}) at {seen} was not asked: {error}"
        is_open = listener.protocol == "PLAINTEXT"
        remedy = "" if is_open else "give account, --ca and --certificate as Kafka's clients have them"
        return unknown("advertised", found, remedy)
    if not answer.brokers:
        return problem("advertised", f"{listener.name} at {seen} names no broker", "look at the broker's log")
    told = answer.brokers[0]
    failing = f"{name} {told}, and that fails from here:"
    if (why := why_unreachable(told, SECONDS)) is not None:
        return problem("advertised", f"{failing} {why}", _REMEDY)
    try:
        behind = ask_metadata(listener, told, target, SECONDS)
    except OSError as error:
        return problem("advertised", f"{failing} {error}", _REMEDY)
    if cluster_id not in {behind.cluster_id, ""}:
        found = f"{name} {told}, where another broker answers (cluster id {behind.cluster_id}, not {cluster_id})"
        return problem("advertised", found, _REMEDY)
    return ok("advertised", f"{name} {told}, where this broker answers")


_REMEDY: Final = "set advertised.listeners to an address that its clients can reach, for each of listeners"


def _told_without_login(listener: "DescribedListener", name: str, seen: Address, why: str) -> Check:
    """As far as it can be known without: Metadata is for those who have logged in."""
    told = seen if listener.advertised is None else parse_address(listener.advertised)
    unreachable = why_unreachable(told, SECONDS)
    if unreachable is not None:
        return problem("advertised", f"{name} {told}, and that fails from here: {unreachable}", _REMEDY)
    if is_loopback(told.host) and not is_loopback(seen.host):
        return warning("advertised", f"{name} {told}, which is each client's own machine", _REMEDY)
    return ok("advertised", f"{name} {told}, where something takes connections; no login was tried: {why}")


def why_unreachable(address: Address, seconds: float) -> str | None:
    """Why nothing can be reached at an address from here; None where something takes connections."""
    try:
        socket.create_connection(address, seconds).close()
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return error.strerror or str(error)
    return None


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
