"""Principals: who a certificate is for, by Kafka's rules."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Self

from seglog_protocol.errors import AuthenticationError, InvalidConfigError

ANONYMOUS: Final = "User:ANONYMOUS"
"""Whoever comes without authentication."""

RULES_KEY: Final = "ssl.principal.mapping.rules"

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_RULES: Final = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)")
_RULE_ALONE: Final = re.compile(_RULE)

_REPLACEMENT: Final = re.compile(
    r"\\(?P<literal>.)|\$\{(?P<name>[a-zA-Z][a-zA-Z0-9]*)\}|\$(?P<digits>[0-9]+)", re.DOTALL
)

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 names; others are shown by their number."""

_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""Tags of the strings that Java shows as text: UTF8, Printable, T61, IA5, General and BMP."""

_ESCAPED: Final = frozenset(',=+<>#;"\\')


# --- Rules ------------------------------------------------------------------------------------------------------------


_Part = str | int
"""A piece of a replacement: a text, or the number of a group of the pattern."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """``pattern`` is one of RE2's, which needs a time in proportion to the subject; None for DEFAULT."""

    text: str = "DEFAULT"
    pattern: Any = None
    replacement: tuple[_Part, ...] = ()
    case: str = ""

    def applied_to(self, subject: str) -> str | None:
        """The name; None where the rule does not match."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name: str = self.pattern.sub(self._replaced, subject)  # each match in it, as in Kafka
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _replaced(self, match: Any) -> str:
        return "".join(part if isinstance(part, str) else match.group(part) or "" for part in self.replacement)


class PrincipalRules:
    """The rules of ``ssl.principal.mapping.rules``, which make a name of a certificate's subject."""

    def __init__(self, rules: list[_Rule]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> Self:
        """The rules as Kafka reads them: ``RULE:pattern/replacement/[LU]`` and DEFAULT, with commas between them.

        A slash in a pattern or replacement is written with a backslash before it. Raises InvalidConfigError.
        """
        return cls([rule for written in _RULES.finditer(text.strip()) for rule in _parsed(written[1], text)])

    def texts(self) -> list[str]:
        """The rules, each as Kafka shows it: without a slash at its end."""
        return [rule.text for rule in self._rules]

    def name_of(self, subject: str) -> str:
        """The name by the first rule that matches.

        Raises AuthenticationError where none does, and for a name that says nothing, or is that of those without one.
        """
        for rule in self._rules:
            name = rule.applied_to(subject)
            if name is None:
                continue
            if not name.strip() or f"User:{name}" == ANONYMOUS:
                raise AuthenticationError(
                    f"the subject of the certificate, {subject}, becomes {name!r} by {RULES_KEY}, which names nobody"
                )
            return name
        raise AuthenticationError(f"no rule of {RULES_KEY} matches the subject of the certificate, {subject}")


def _parsed(written: str, text: str) -> list[_Rule]:
    """The rule; none where it is empty, as between two commas."""
    found = _RULE_ALONE.match(written)
    if found is None or found.end() != len(written):
        _refuse(
            text, f"{written} is no rule: write RULE:pattern/replacement/, perhaps with L or U behind it, or DEFAULT"
        )
    is_default, pattern, replacement, case, _ = found.groups()
    if is_default:
        return [_Rule()]
    if pattern is None:
        return []
    import re2  # noqa: PLC0415 - for the few that have rules

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error
        _refuse(text, f"{pattern} is no regular expression of RE2: {reason}")
    shown = f"RULE:{pattern}/{replacement}{f'/{case}' if case else ''}"
    parts = tuple(part for part in _parts(replacement, compiled, text) if part != "")
    if not parts:
        _refuse(text, "the replacement of a rule is empty, so each name that it makes would be, too")
    return [_Rule(shown, compiled, parts, case)]


def _parts(replacement: str, pattern: Any, text: str) -> Iterator[_Part]:
    """The pieces of a replacement in Java's words: ``$1``, ``${name}``, and a backslash before what stands for itself.

    A group that the pattern does not have is refused; in Kafka it stands for itself, so that names get a ``$2``.
    """
    end = 0
    for found in _REPLACEMENT.finditer(replacement):
        yield _literal(replacement[end : found.start()], text)
        end = found.end()
        if found["literal"]:
            yield str(found["literal"])
        elif found["name"]:
            if found["name"] not in pattern.groupindex:
                _refuse(text, f"the pattern has no group {found['name']}, which its replacement names")
            yield int(pattern.groupindex[found["name"]])
        else:
            yield from _numbered(found["digits"], pattern.groups, text)
    yield _literal(replacement[end:], text)


def _numbered(digits: str, groups: int, text: str) -> Iterator[_Part]:
    """As many of the digits as name a group; the rest is text."""
    if int(digits[0]) > groups:
        has = f"{groups} group{'' if groups == 1 else 's'}" if groups else "no groups"
        _refuse(text, f"the pattern has {has}, and its replacement names ${digits}")
    size = 1
    while size < len(digits) and int(digits[: size + 1]) <= groups:
        size += 1
    yield int(digits[:size])
    yield digits[size:]


def _literal(piece: str, text: str) -> str:
    if "$" in piece or "\\" in piece:
        _refuse(text, "a $ in a replacement is followed by the number of a group, or has a backslash before it")
    return piece


def _refuse(text: str, why: str) -> NoReturn:
    raise InvalidConfigError(f"{RULES_KEY} = {text} cannot be used: {why}.", key=RULES_KEY)


# --- Subjects ---------------------------------------------------------------------------------------------------------


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate (DER) as Java's X500Principal.getName() writes it, after RFC 2253.

    Raises AuthenticationError when it cannot be read.
    """
    from cryptography.x509 import load_der_x509_certificate  # noqa: PLC0415 - large, and only for TLS

    try:
        name = load_der_x509_certificate(certificate).subject.public_bytes()
        [(_, relatives)] = _elements(name)
        parts = ["+".join(_attribute(each) for _, each in _elements(value)) for _, value in _elements(relatives)]
    except (ValueError, IndexError) as error:
        raise AuthenticationError("the subject of the client's certificate cannot be read") from error
    return ",".join(reversed(parts))


def _attribute(content: bytes) -> str:
    (_, identifier), (tag, value) = _elements(content)
    number = _dotted(identifier)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or number}=#{_element(tag, value).hex()}"
    text = "".join(
        f"\\{character}" if character in _ESCAPED else "\\00" if character == "\0" else character
        for character in value.decode("utf-8", "replace")
    )
    body = text.strip(" \r")
    lead = len(text) - len(text.lstrip(" \r"))
    ends = text[:lead], text[lead + len(body) :]
    before, behind = ("".join(f"\\{character}" for character in end) for end in ends)
    return f"{keyword}={before}{body}{behind}"


# --- DER --------------------------------------------------------------------------------------------------------------


def _elements(content: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each element; those of a name have tags of one byte."""
    found = []
    place = 0
    while place < len(content):
        tag, size = content[place], content[place + 1]
        place += 2
        if size & 0x80:
            width = size & 0x7F
            size = int.from_bytes(content[place : place + width], "big")
            place += width
        found.append((tag, content[place : place + size]))
        place += size
    return found


def _element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    width = (size.bit_length() + 7) // 8
    return bytes([tag, 0x80 | width]) + size.to_bytes(width, "big") + content


def _dotted(identifier: bytes) -> str:
    numbers = [0]
    for byte in identifier:
        numbers[-1] = numbers[-1] << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(0)
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:-1]]))
