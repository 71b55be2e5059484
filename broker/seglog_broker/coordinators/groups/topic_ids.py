"""Topic ids in sixteen bytes, as Kafka has them on its wire and in its records; the engine has 22 characters."""

import base64
from functools import lru_cache
from typing import Final

NO_ID: Final = bytes(16)
"""Where a topic is not named by its id."""


@lru_cache(maxsize=10_000)
def id_bytes(topic_id: str) -> bytes:
    """The sixteen bytes of a topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


@lru_cache(maxsize=10_000)
def id_text(topic_id: bytes) -> str:
    """The 22 characters of a topic id."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
