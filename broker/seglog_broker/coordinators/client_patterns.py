"""Regular expressions of clients, for topics and transactional ids: RE2's, as Kafka's brokers have, matched by RE2.

RE2 reads and matches in time that is linear in what it reads. What a client sends is bounded all the same: in its
length, in its classes of characters, which take longest to read, and in the memory of what RE2 makes of it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from time import thread_time
from typing import Final

import re2

MEMORY_MAX: Final = 192 * 1024
"""Bytes of a compiled expression. They bound the time to match one name, too: some 25 ms at worst."""

TEXT_BYTES_MAX: Final = 32_767
"""The limit of a string in Kafka's records."""

_CLASSES_MAX: Final = 3_000
"""Classes of characters. One of Unicode's counts as twenty, which is what it costs to read."""
_UNICODE_CLASS: Final = 20

STEP_SECONDS: Final = 0.005
"""Processor time after which the matching of names yields."""
MATCHING_SECONDS_MAX: Final = 3.0
"""Processor time for all names together. RE2 takes some microseconds for a name with all but hostile expressions."""

_NAME: Final = re.compile(r"\(\?P?<(\w+)>")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_ANY_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")


class PatternError(ValueError):
    """Why an expression is invalid, as the end of a sentence."""


class ClientPattern:
    """A regular expression that has to match a whole name. Raises PatternError if it is invalid."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > TEXT_BYTES_MAX:
            raise PatternError(f"it has {len(encoded):,} bytes: more than {TEXT_BYTES_MAX:,}")
        escaped = _ESCAPED.findall(text)
        of_unicode = escaped.count("p") + escaped.count("P")
        if len(escaped) + text.count("[") + of_unicode * (_UNICODE_CLASS - 1) > _CLASSES_MAX:
            raise PatternError("it has too many classes of characters: it would take too long to read")
        names = _NAME.findall(text)
        if "C" in escaped or len(set(names)) < len(names):
            raise PatternError("Kafka's brokers take neither \\C nor two groups of one name")
        options = re2.Options()
        options.max_mem = MEMORY_MAX
        options.log_errors = False
        options.never_capture = True
        # Names of topics are ASCII, and classes without the rest of Unicode are a hundred times smaller. An expression
        # that names other characters is compiled as it is, and one with Unicode's classes would take RE2 long anyway.
        if text.isascii() and "\\x{" not in text and not (of_unicode and _ANY_CASE.search(text)):
            options.encoding = re2.Options.Encoding.LATIN1
        try:
            self._compiled = re2.compile(encoded, options=options)
        except re2.error as error:
            raise PatternError(f"RE2 says: {_reason(error)}") from None
        finally:
            re2.purge()  # it keeps the last hundred and more

    def matching(
        self, names: Iterable[str], processor_seconds: Callable[[], float] = thread_time
    ) -> Iterator[str | None]:
        """Those of ``names`` that it matches, and None where it is time for a turn of others.

        Raises PatternError if that takes too long.
        """
        fullmatch = self._compiled.fullmatch
        began, spent = processor_seconds(), 0.0
        for name in names:
            if fullmatch(name.encode()):
                yield name
            if (taken := processor_seconds() - began) > STEP_SECONDS:
                spent += taken
                if spent > MATCHING_SECONDS_MAX:
                    raise PatternError("it takes too long to match it against the names of all topics")
                yield None
                began = processor_seconds()


def _reason(error: "re2.error") -> str:
    (reason,) = error.args
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
