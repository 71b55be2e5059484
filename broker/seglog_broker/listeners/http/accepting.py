"""What a client takes, by its headers that begin with Accept."""

from collections.abc import Iterator
from typing import NamedTuple


class Accepted(NamedTuple):
    """An entry of such a header, in small letters."""

    value: str
    parameters: dict[str, str]
    quality: float
    """From 0, not at all, to 1, best."""


def accepted(header: str) -> Iterator[Accepted]:
    """The entries of the header, whatever is in it: a quality that is none counts as 0."""
    for entry in header.split(","):
        value, *rest = (part.strip().lower() for part in entry.split(";"))
        parameters = {name.strip(): word.strip() for name, _, word in (part.partition("=") for part in rest)}
        yield Accepted(value, parameters, _quality(parameters.pop("q", "1")))


def _quality(written: str) -> float:
    try:
        quality = float(written)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
