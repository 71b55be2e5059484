"""How a long page is coded: as it is, or by gzip, as the client's headers that begin with Accept have it.

Lines of metrics repeat each other, so a page becomes some twentieth. To compress it costs less processor time than the
kernel would need for the rest, and the scraper is woken for some twenty pieces in place of hundreds.
"""

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

GZIP: Final = "gzip"

LEVEL: Final = 1
"""zlib's quickest; the slowest would make a page of metrics a tenth smaller, and take twice as long."""

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
"""zlib's number for gzip; it keeps 256 KiB for that."""


class Plain:
    """Codes nothing."""

    name: str | None = None
    """For the header Content-Encoding; None: it has none."""

    def add(self, data: bytes) -> bytes:
        """What is to be sent now that ``data`` has come: nothing as long as more has to come first."""
        return data

    def end(self, data: bytes) -> bytes:
        """What is to be sent when ``data`` is the last."""
        return data


class Gzip(Plain):
    """Codes one page by gzip. Without its end a client notices that the page is not whole."""

    name = GZIP

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)

    def add(self, data: bytes) -> bytes:
        """As that of ``Plain``."""
        return self._compressor.compress(data)

    def end(self, data: bytes) -> bytes:
        """As that of ``Plain``."""
        return self._compressor.compress(data) + self._compressor.flush()


def coding_of(accept_encoding: str) -> type[Plain]:
    """The coding for a client with this header Accept-Encoding: gzip if it names it."""
    takes_gzip = any(entry.value == GZIP and entry.quality > 0 for entry in accepted(accept_encoding))
    return Gzip if takes_gzip else Plain


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
