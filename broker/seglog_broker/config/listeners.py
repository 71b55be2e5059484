"""Kafka's listeners: those that are served, what each advertises, and whether they can be served at all.

Each has a name, which ties it to its advertised address and, by ``listener.security.protocol.map``, to what is spoken
there. One that is for controllers (``controller.listener.names``) is accepted and not opened: there are none.
"""

from itertools import combinations
from typing import TYPE_CHECKING

from seglog_broker.config.values import ALL_ADDRESSES, PROTOCOLS, Listener, split_address, split_listener
from seglog_protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    from seglog_broker.config.broker_config import BrokerConfig


def served_listeners(config: "BrokerConfig") -> list[Listener]:
    """The listeners that are opened, in their order."""
    controllers = {name.upper() for name in config.controller_listener_names}
    return [listener for listener in map(split_listener, config.listeners) if listener.name not in controllers]


def advertised_listener(config: "BrokerConfig", place: int) -> Listener | None:
    """What the listener at ``place`` of ``served_listeners`` advertises; None for the address a client has reached.

    Of listeners with the same name each advertises the address at its own place among those of that name, or the last.
    """
    served = served_listeners(config)
    name = served[place].name
    addresses = [listener for listener in map(split_listener, config.advertised_listeners) if listener.name == name]
    before = sum(listener.name == name for listener in served[:place])
    return addresses[min(before, len(addresses) - 1)] if addresses else None


def check_listeners(config: "BrokerConfig") -> None:
    """Raise InvalidConfigError for what the start would refuse.

    That is a listener that is not to speak PLAINTEXT, two on one port, and an advertised one that is none.
    """
    protocols = {name: name for name in PROTOCOLS}
    for entry in config.listener_security_protocol_map:
        name, _, protocol = entry.partition(":")
        protocols[name] = protocol
    for name, _, _ in served_listeners(config):
        if name not in protocols:
            raise InvalidConfigError(
                f"listeners = {','.join(config.listeners)} cannot be used: listener.security.protocol.map does not say "
                f"what {name} speaks: add {name}:PLAINTEXT to it.",
                key="listeners",
            )
        if protocols[name] != PROTOCOLS[0]:
            raise InvalidConfigError(
                f"listeners = {','.join(config.listeners)} cannot be used: {name} is to speak {protocols[name]}, and "
                "there is no TLS and no SASL yet, only PLAINTEXT.",
                key="listeners",
            )
    _check_ports(config)
    known = {listener.name for listener in map(split_listener, config.listeners)}
    for address in config.advertised_listeners:
        if config.listeners and split_listener(address).name not in known:
            raise InvalidConfigError(
                f"advertised.listeners = {','.join(config.advertised_listeners)} cannot be used: no listener is named "
                f"{split_listener(address).name}; in listeners there {'are' if len(known) > 1 else 'is'} "
                f"{', '.join(sorted(known))}.",
                key="advertised.listeners",
            )


def _check_ports(config: "BrokerConfig") -> None:
    places = [("seglog.listen", *split_address(config.seglog_listen))]
    places += [(f"{name} of listeners", host, port) for name, host, port in served_listeners(config)]
    for (first, host, port), (second, other_host, other_port) in combinations(places, 2):
        if port == other_port != 0 and (host == other_host or {host, other_host} & ALL_ADDRESSES):
            raise InvalidConfigError(
                f"listeners = {','.join(config.listeners)} cannot be used: {first} and {second} have the same port, "
                f"{port}; give one of them another.",
                key="listeners",
            )
