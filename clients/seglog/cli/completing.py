"""What the broker knows, for completion: asked for briefly, and without a word where that fails."""

import logging
from typing import Final

import click

from seglog.cli.arguments import server_of
from seglog.client import connect

_CONNECT_SECONDS: Final = 0.3
_ANSWER_SECONDS: Final = 0.5


def topic_names(context: click.Context, incomplete: str) -> list[str]:
    """Names of topics that begin with what was typed; none where no broker tells them soon."""
    logging.getLogger("seglog").addHandler(logging.NullHandler())
    server = context.params.get("server") or context.find_root().params.get("server")
    try:
        with connect(
            server_of(server),
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_ANSWER_SECONDS,
            client_id="seglog-completion",
        ) as client:
            return [topic.name for topic in client.topics() if topic.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - whatever it is, it must not be written into somebody's prompt
        return []
