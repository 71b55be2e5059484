"""Secrets taken out of text, by what stands before them and by how they look.

Whoever wrote a line may have written a secret into it, as in a value of the configuration or a message of a library. So
everything in a bundle goes through here, also what has no secret by its kind.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

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
