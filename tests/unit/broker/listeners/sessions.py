"""A session without a connection."""

import socket

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.session import Listener, Session
from seglog_broker.listeners.transport import Transport


def open_session(broker: Broker) -> Session:
    """The session of a client of a listener that asks for nothing."""
    with socket.socket() as closed:
        pass
    return Session(broker, Listener(), Transport(closed))
