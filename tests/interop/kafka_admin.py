"""Requests about configuration to a real Kafka, such as no client would let through."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.interop.kafka_wire import Plain, Wire, plain, request

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


class Entry(NamedTuple):
    """One entry of an answer to DescribeConfigs; ``type`` and ``source`` are Kafka's numbers."""

    name: str
    value: str | None
    is_read_only: bool
    source: int
    is_sensitive: bool
    synonyms: list[tuple[str, str | None, int]]
    type: int
    documentation: str | None


class Outcome(NamedTuple):
    """Kafka's error code, 0 for none, and its message."""

    code: int
    message: str | None


class Admin(Wire):
    """One connection to the Kafka on a port of this machine. A context manager."""

    def create_topic(self, name: str, config: Sequence[tuple[str, str]] = ()) -> Outcome:
        """CreateTopics v2, one partition."""
        configs = [{"name": key, "value": value} for key, value in config]
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
        return self._outcome("CreateTopics", 2, {"topics": [topic], "timeout_ms": 30_000}, "topics")[0]

    def describe(self, resource: int, name: str, keys: Sequence[str] | None = None) -> tuple[Outcome, list[Entry]]:
        """DescribeConfigs v3 with synonyms and documentation; None for all keys. Entries are in the order of names."""
        wanted = None if keys is None else list(keys)
        asked = {"resource_type": resource, "resource_name": name, "configuration_keys": wanted}
        fields = {"resources": [asked], "include_synonyms": True, "include_documentation": True}
        outcome, told = self._outcome("DescribeConfigs", 3, fields, "results")
        return outcome._replace(message=outcome.message or None), sorted(map(_entry, told["configs"]))

    def alter_incrementally(
        self, resource: int, name: str, changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool = False
    ) -> Outcome:
        """IncrementalAlterConfigs v0."""
        configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        return self._alter("IncrementalAlterConfigs", resource, name, configs, validate_only=validate_only)

    def alter(
        self, resource: int, name: str, settings: Sequence[tuple[str, str | None]], *, validate_only: bool = False
    ) -> Outcome:
        """AlterConfigs v0."""
        configs = [{"name": key, "value": value} for key, value in settings]
        return self._alter("AlterConfigs", resource, name, configs, validate_only=validate_only)

    def _alter(self, api: str, resource: int, name: str, configs: Plain, *, validate_only: bool) -> Outcome:
        altered = {"resource_type": resource, "resource_name": name, "configs": configs}
        return self._outcome(api, 0, {"resources": [altered], "validate_only": validate_only}, "responses")[0]

    def _outcome(self, api: str, version: int, fields: dict[str, Plain], results: str) -> tuple[Outcome, Any]:
        """The only one of the ``results``, and the whole of it."""
        [told] = plain(self.ask(request(api, fields), version))[results]
        return Outcome(told["error_code"], told["error_message"]), told


def _entry(told: dict[str, Plain]) -> Entry:
    synonyms = [(each["name"], each["value"], each["source"]) for each in told["synonyms"]]
    return Entry(
        told["name"], told["value"], told["read_only"], told["config_source"], told["is_sensitive"],
        synonyms, told["config_type"], told["documentation"],
    )  # fmt: skip
