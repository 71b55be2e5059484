"""Errors of reading: bytes are malformed, or of an api or version that the table lacks. Nothing else is raised."""


class WireError(Exception):
    """Bytes that are no message, or none that is known."""


class Malformed(WireError):  # noqa: N818 - an adjective says it
    """Bytes that do not follow the definition of their message: truncated, or with a length that cannot be."""

    def __init__(self, message: str, version: int, field: str, reason: str) -> None:
        super().__init__(f"{message} v{version}, {field}: {reason}" if field else f"{message} v{version}: {reason}")
        self.message = message
        self.version = version
        self.field = field
        """Its place, with dots: ``topic_data.partition_data.records``; empty if it is none of the message's own."""
        self.reason = reason

    def __reduce__(self) -> tuple[type["Malformed"], tuple[str, int, str, str]]:
        return Malformed, (self.message, self.version, self.field, self.reason)


class UnsupportedVersion(WireError):  # noqa: N818 - as Kafka names it
    """An api that the table does not have, or not in this version."""

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        super().__init__(f"api {api_key} v{version} is not known (correlation id {correlation_id})")
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        """Of the request, for its answer."""

    def __reduce__(self) -> tuple[type["UnsupportedVersion"], tuple[int, int, int]]:
        return UnsupportedVersion, (self.api_key, self.version, self.correlation_id)
