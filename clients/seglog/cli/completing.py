"""What the broker knows, for completion: asked for briefly, and without a word where that fails."""

import logging
import os
from collections.abc import Callable
from typing import Final

import click

from seglog.cli.arguments import server_of
from seglog.client import Client, connect

_SECONDS: Final = 0.25
"""Patience for a connection, and for an answer: together half a second, which a key press may take."""
PATIENCE_VARIABLE: Final = "_SEGLOG_COMPLETE_SECONDS"
"""The environment variable with another number, for brokers far away and machines that are busy."""


def topic_names(context: click.Context, incomplete: str) -> list[str]:
    """Names of topics that begin with what was typed; none where no broker tells them soon."""
    return _names(context, incomplete, lambda client: [topic.name for topic in client.topics()])


def group_names(context: click.Context, incomplete: str) -> list[str]:
    """As ``topic_names``, of groups; without those whose names hold line breaks, say, which shells would split."""
    return _names(context, incomplete, lambda client: [group.group for group in client.groups()])


def _names(context: click.Context, incomplete: str, asked: Callable[[Client], list[str]]) -> list[str]:
    logging.getLogger("seglog").addHandler(logging.NullHandler())
    server = context.params.get("server") or context.find_root().params.get("server")
    try:
        seconds = float(os.environ.get(PATIENCE_VARIABLE, _SECONDS))
        with connect(
            server_of(server),
            connect_timeout=seconds,
            request_timeout=seconds,
            client_id="seglog-completion",
        ) as client:
            return [name for name in asked(client) if name.startswith(incomplete) and name.isprintable()]
    except Exception:  # noqa: BLE001 - whatever it is, it must not be written into somebody's prompt
        return []
