"""Types of option values: functions that parse text, or raise ValueError with what it must be."""

from collections.abc import Callable
from typing import Any, Final

import click

from seglog.core.moments import PARTITION_MAX

_AMOUNT_MAX: Final = 1e9
_INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 100


class Checked(click.ParamType[Any]):
    """A type of click that parses with ``check``, whose ValueError is the usage error; help shows ``name``."""

    def __init__(self, name: str, check: Callable[[str], Any]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value of what was typed."""
        try:
            return self._check(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def count(text: str) -> int:
    """A whole number, 0 or more."""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"must be a whole number, 0 or more, not {text!r}")
    return _bounded(text)


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if not (text.isascii() and text.isdecimal() and text.strip("0")):
        raise ValueError(f"must be a whole number, 1 or more, not {text!r}")
    return _bounded(text)


def partition(text: str) -> int:
    """The number of a partition."""
    count(text)
    return _bounded(text, PARTITION_MAX)


def _bounded(text: str, largest: int = _INT64_MAX) -> int:
    if len(text) > _DIGITS_MAX or int(text) > largest:
        raise ValueError(f"must be a whole number, at most {largest}")
    return int(text)


def group_name(text: str) -> str:
    """The name of a group, which is any text but none."""
    if not text:
        raise ValueError("must not be empty")
    return text


def amount(text: str) -> float:
    """A number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < _AMOUNT_MAX:
        raise ValueError(f"must be a number, 0 or more, not {text!r}")
    return value


def seconds(text: str) -> float:
    """A duration in seconds, 0 or more, or with its unit: ``1.5``, ``500ms``, ``2m``."""
    return _duration(text, "SECONDS")


def some_seconds(text: str) -> float:
    """As ``seconds``, but more than 0."""
    value = seconds(text)
    if not value:
        raise ValueError("must be more than 0")
    return value


def milliseconds(text: str) -> float:
    """A duration in milliseconds, 0 or more, or with its unit: ``5``, ``0.5s``."""
    return _duration(text, "MILLISECONDS")


def _duration(text: str, name: str) -> float:
    from seglog_protocol.quantities import Unit, parse_quantity

    quantity = parse_quantity(text, unit := Unit[name])
    try:
        value = amount(text) if quantity is None else float(quantity)
    except ValueError:
        value = _AMOUNT_MAX
    if value >= _AMOUNT_MAX:
        raise ValueError(f"must be a number of {unit.value}, or one with a unit such as 500ms, 10s or 2m, not {text!r}")
    return value


def size(text: str) -> int:
    """A number of bytes, 1 or more, or with its unit: ``65536``, ``64KiB``."""
    from seglog_protocol.quantities import Unit, parse_quantity

    quantity = parse_quantity(text, Unit.BYTES)
    if quantity is None and text.isascii() and text.isdecimal():
        return positive(text)
    if not quantity or quantity.denominator != 1:
        raise ValueError(f"must be a number of bytes, 1 or more, such as 65536, 64KiB or 1MB, not {text!r}")
    return int(quantity)


def mebibytes(text: str) -> int:
    """A number of MiB, 1 or more, or a size with its unit that is one: ``128``, ``1GiB``."""
    from seglog_protocol.quantities import Unit, parse_quantity

    if parse_quantity(text, Unit.BYTES) is None:
        return positive(text)
    whole, rest = divmod(size(text), 1 << 20)
    if rest:
        raise ValueError(f"must be a whole number of MiB, not {text!r}")
    return whole


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"must be KEY=VALUE, not {text!r}")
    return key, value


def listen_address(text: str) -> str:
    """``HOST:PORT``, where to listen; port 0 is any that is free."""
    import re

    from seglog.core.dialing import parse_address

    if re.fullmatch(r"(\[[^]]*\]|[^:]*):\d+", text) is None:
        raise ValueError(f"must be HOST:PORT, for example 127.0.0.1:9192, not {text!r}")
    return text if text.endswith(":0") else str(parse_address(text))


def separator(text: str) -> str:
    r"""Text between two others; ``\t`` is a tab."""
    return group_name(text).replace(r"\t", "\t")


def place_of_partition(text: str) -> tuple[int | None, str]:
    """``PARTITION:PLACE``, or ``PLACE`` alone, with None, for all partitions; a time may itself hold colons."""
    partition, colon, place = text.partition(":")
    if colon and partition.isascii() and partition.isdecimal():
        return int(partition), place
    return None, text


def topic_partitions(text: str) -> tuple[str, list[int] | None]:
    """``TOPIC``, with None for all its partitions, or ``TOPIC:0,2``."""
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not all(number.isascii() and number.isdecimal() for number in numbers.split(","))):
        raise ValueError(f"must be TOPIC or TOPIC:PARTITION,..., for example clicks or clicks:0,2, not {text!r}")
    return topic, [_bounded(number, PARTITION_MAX) for number in numbers.split(",")] if colon else None


COUNT: Final = Checked("N", count)
PARTITION: Final = Checked("N", partition)
GROUP_NAME: Final = Checked("NAME", group_name)
POSITIVE: Final = Checked("N", positive)
AMOUNT: Final = Checked("RECORDS/S", amount)
SECONDS: Final = Checked("SECONDS", seconds)
SOME_SECONDS: Final = Checked("SECONDS", some_seconds)
MILLISECONDS: Final = Checked("MS", milliseconds)
SIZE: Final = Checked("BYTES", size)
MEBIBYTES: Final = Checked("MB", mebibytes)
PAIR: Final = Checked("KEY=VALUE", pair)
LISTEN_ADDRESS: Final = Checked("HOST:PORT", listen_address)
SEPARATOR: Final = Checked("TEXT", separator)
PLACE_OF_PARTITION: Final = Checked("[PARTITION:]OFFSET|TIME", place_of_partition)
TOPIC_PARTITIONS: Final = Checked("TOPIC[:0,2]", topic_partitions)
