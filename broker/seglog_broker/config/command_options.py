"""The options by which commands beside the broker are given its configuration."""

import argparse
import os
from collections.abc import Sequence
from datetime import datetime

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.config.sources import ConfigSources


def add_config_options(parser: argparse.ArgumentParser, *, purpose: str = "") -> None:
    """Add --config and --set. ``purpose`` is the end of the sentence that --help has about the file."""
    parser.add_argument("--config", metavar="FILE", help=f"the broker's configuration file (or SEGLOG_CONFIG){purpose}")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set one key; repeatable")


def number_of_option(least: int, most: int, text: str) -> int:
    """The number that an option is. Raises ArgumentTypeError for one outside of these."""
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be a number from {least} to {most}")
    return int(text)


def time_of_option(text: str) -> int:
    """The time of ISO 8601 that an option is, local where it names no zone, in ms since 1970."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write 2026-11-28T14:00, by the clock of this machine, or 2026-11-28T13:00Z"
        ) from None


def load_config(file: str | None, settings: Sequence[str] = ()) -> BrokerConfig:
    """The configuration by --config, else SEGLOG_CONFIG; the environment; and --set. Raises InvalidConfigError."""
    file_name = file or os.environ.get("SEGLOG_CONFIG") or ""
    return ConfigSources(file_name, os.environ, settings).load()[0]
