"""The archive itself: gzipped tar, readable by its owner alone, in which secrets are taken out of every text.

Whoever wrote a line may have written a secret into it, as in a value of the configuration or a message of a library. So
everything in a bundle goes through here, also what has no secret by its kind.
"""

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self


class ArchiveError(Exception):
    """The archive cannot be written; ``cause`` is why. No OSError: what collects goes on after one of its sources."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Archive:
    """A file that is not there yet. Raises FileExistsError where it is.

    Nothing is left of it where the ``with`` block, or writing, fails: what raises ArchiveError.
    """

    def __init__(self, path: str, folder: str, secrets: Sequence[str] = ()) -> None:
        """``folder`` is the one in the archive; ``secrets`` are some that must not be in it."""
        self._path = Path(path)
        self._folder = folder
        self._secrets = secrets
        self.names: list[str] = []
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            try:
                self._tar.close()
            finally:
                self._file.close()  # writes what is buffered
        except OSError as failure:
            self._path.unlink(missing_ok=True)
            if kind is None:
                raise ArchiveError(failure) from failure
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def add(self, name: str, content: str | bytes) -> None:
        """Add a file. Bytes that are no text are kept as escapes: secrets are found in text. Raises ArchiveError."""
        text = content.decode(errors="backslashreplace") if isinstance(content, bytes) else content
        data = redacted(text, self._secrets).encode(errors="backslashreplace")
        info = tarfile.TarInfo(f"{self._folder}/{name}")
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
        try:
            self._tar.addfile(info, io.BytesIO(data))
        except OSError as failure:
            raise ArchiveError(failure) from failure
        self.names.append(name)

    def add_json(self, name: str, value: Any) -> None:
        """Add a value, in lines for people."""
        self.add(name, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


HIDDEN: Final = "[hidden]"
"""Stands for a secret, as in the broker's own log."""

KNOWN_CHARACTERS_MIN: Final = 4
"""A known secret that is shorter would take letters out of every word."""

# No part of a pattern begins with a repetition: what looks at a megabyte without a secret takes one pass.
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,20}-----|\Z)", re.DOTALL
)
_NAMED: Final = re.compile(
    r"""(?ix)
    ( (?: password | passwd | passphrase | secret | credential | api[_-]?key | keystore\.key | token | authorization
        | jaas[._]config | stored_?key | server_?key )
      (?! [\w.\-]{0,60}
          \b (?: file | location | path | url | type | mechanisms? | seconds | ms | issuer | audience )
          \b )
      (?! _ (?: file | path ) ) [\w.\-]{0,60} ["']? \s{0,4} [=:] \s{0,4} )
    ( "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | (?! null\b | true\b | false\b | [\[{\s] ) [^\s,;}\])]+ )
    """
)
_LINE: Final = re.compile(
    r"""(?imx)
    ^ ( [\w.\-]{0,80} (?: password | passwd | passphrase | secret | keystore\.key | jaas\.config )
        \s{0,4} [=:] \s{0,4} )
    ( [^"'\[{\s] .* ) $
    """
)
_OPTION: Final = re.compile(
    r"""(?ix)
    (?<![\w-]) ( -- [\w-]{0,40}? (?: password | passwd | passphrase | secret | token | api-?key )
        (?: ["']? \s{0,4} , \s{0,4} | \s{0,4} = \s{0,4} | [\s\0]{1,4} ) )
    ( "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | (?: \\. | [^\s\0"\\] | "(?! [\s,}\]] | \Z) )+ )
    """
)  # as typed: what follows the option is its value, whatever is in it
_HEADER: Final = re.compile(
    r"""(?ix)
    \b ( (?: (?: set- )? cookie2? | (?: proxy- )? authorization )
        (?: ["'] \s{0,4} [,:] \s{0,4} b? | \s{0,4} : \s{0,4} ) | (?: set- )? cookie \s{0,4} = \s{0,4} )
    ( "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
        | (?! null\b | true\b | false\b | [\[{\s"'] ) (?: \\. | [^\r\n"\\]
            | "(?! \s{0,4} (?: [}\]\r\n] | , \s{0,4} ["\n] | \Z ) ) )+ )
    """
)  # all of a header's value, which has parts
_IN_URL: Final = re.compile(r"(?<=://)[^/\s:@]{0,200}:[^/\s@]{1,200}(?=@)")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s{1,4}[\w.~+/=-]{6,}")
_JWT: Final = re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*")


def redacted(text: str, known: Sequence[str] = ()) -> str:
    """``text`` without secrets; ``known`` are some that must not be in it, whatever stands before them."""
    for secret in known:
        if len(secret) >= KNOWN_CHARACTERS_MIN:
            for written in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
                text = text.replace(written, HIDDEN)
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _JWT.sub(HIDDEN, text)
    text = _OPTION.sub(_without, text)
    text = _HEADER.sub(_without, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _IN_URL.sub(HIDDEN, text)
    text = _LINE.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(_without, text)


def _without(found: re.Match[str]) -> str:
    quote = found[2][0] if found[2][0] in "\"'" else ""
    return f"{found[1]}{quote}{HIDDEN}{quote}"
