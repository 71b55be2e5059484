"""How a long page is coded on its way: as it is, or by gzip for a client that takes it, as Prometheus does.

Lines of metrics repeat each other, so a page becomes some twentieth. To compress it costs less processor time than the
kernel would need for the rest, and the scraper is woken for some twenty pieces in place of hundreds.
"""

import zlib
from typing import Final

from seglog_broker.listeners.http.accepting import accepted

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
