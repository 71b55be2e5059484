"""Configuration of the broker and of its topics: Kafka's keys, checked, each value with its origin.

``load_config`` makes the one ``BrokerConfig`` of a process out of file, environment and flags, and
``BrokerConfig.topic_config`` makes a ``TopicConfig`` for each topic. ``python -m seglog_broker.config`` prints
the page CONFIG.md from the same tables.
"""

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.config.keys import Described, Effect, Origin, OriginKind
from seglog_broker.config.listeners import (
    ServedListener,
    advertised_listener,
    all_listeners,
    has_tls,
    http_listener,
    native_listener,
    served_listeners,
)
from seglog_broker.config.sources import ConfigSources, load_config, read_config_file
from seglog_broker.config.topic_config import TopicConfig
from seglog_broker.config.topic_overrides import validate_topic_config
from seglog_broker.config.values import join_address, split_address

__all__ = [
    "BrokerConfig",
    "ConfigSources",
    "Described",
    "Effect",
    "Origin",
    "OriginKind",
    "ServedListener",
    "TopicConfig",
    "advertised_listener",
    "all_listeners",
    "has_tls",
    "http_listener",
    "join_address",
    "load_config",
    "native_listener",
    "read_config_file",
    "served_listeners",
    "split_address",
    "validate_topic_config",
]
