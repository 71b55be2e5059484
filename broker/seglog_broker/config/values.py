"""Kinds of configuration value: parsing, valid range, and the text form.

Every kind reads the same value from text (flags, environment, command line) and from a typed value (TOML, msgpack), so
``"4096"`` and ``4096`` are one setting. ``parse`` raises ``ValueError`` with the second half of a sentence, "must be
..."; the caller adds the key and its origin in front. ``text`` gives Kafka's form: ``true``, ``-1``,
``compact,delete``.
"""

import ipaddress
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, NamedTuple

from seglog_protocol.quantities import Unit, parse_quantity

Value = bool | int | float | str | tuple[str, ...]
"""A parsed value."""

Raw = object
"""A value as written: text, or any value that TOML or msgpack can hold. It is not checked."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_WITH_WORD: Final = re.compile(r"[0-9][0-9.]*\s*[A-Za-z]+")  # a number and a word that may be a unit
_SHOWN_MAX: Final = 60  # characters of a refused value that a message repeats


class Kind:
    """One kind of value with its valid range: the base class of all of them."""

    separator: ClassVar = ","
    """Between the words of a list."""

    @property
    def type_name(self) -> str:
        """Kafka's name of the type: boolean, int, long, double, string, list."""
        return "string"

    @property
    def valid(self) -> str:
        """The valid values in a few words, for a table; empty when every value of the type is valid."""
        return ""

    def parse(self, raw: Raw) -> Value:
        """The value of ``raw``. Raises ValueError ("must be ...") when it is not valid."""
        raise NotImplementedError

    def text(self, value: Value) -> str:
        """The value as Kafka writes it; ``parse(text(value)) == value``."""
        return self.separator.join(value) if isinstance(value, tuple) else str(value)


def shown(raw: Raw) -> str:
    """A refused value as a message repeats it, cut to 60 characters."""
    text = raw if isinstance(raw, str) else repr(raw)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def parse_with_unit(kind: Kind, raw: Raw, unit: Unit | None) -> Value:
    """As ``kind.parse``, where a number of ``unit`` may also be written as ``7d`` or ``1GiB``.

    Raises ValueError ("must be ..."), also where a whole number is needed and ``raw`` is not one of ``unit``.
    """
    if unit is None or not isinstance(kind, Whole | Double):
        return kind.parse(raw)
    quantity = parse_quantity(raw, unit) if isinstance(raw, str) else None
    if quantity is None and isinstance(raw, str) and _WITH_WORD.fullmatch(raw.strip()):
        examples = f"also written as in {unit.examples} (the units are {unit.names})"
        raise ValueError(f"must be a number of {unit.value}, {examples}")
    if quantity is not None and quantity.denominator != 1 and isinstance(kind, Whole):
        raise ValueError(f"must be a whole number of {unit.value}")
    try:
        return kind.parse(raw if quantity is None else int(quantity) if quantity.denominator == 1 else float(quantity))
    except ValueError as error:
        raise ValueError(f"{error}: {unit.value}, also written as in {unit.examples}") from error


class Boolean(Kind):
    """``true`` or ``false``, in any case when written as text, as in Kafka."""

    type_name = "boolean"

    def parse(self, raw: Raw) -> bool:
        """The value that ``raw`` stands for, or ValueError."""
        if isinstance(raw, bool):
            return raw
        word = raw.strip().lower() if isinstance(raw, str) else ""
        if word not in {"true", "false"}:
            raise ValueError("must be true or false")
        return word == "true"

    def text(self, value: Value) -> str:
        """The value as Kafka writes it."""
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number from ``minimum`` to ``maximum``, both included, or the one value ``also``.

    A limit of None is the limit of Kafka's own type: 16 bits (``Short``), 32 (``Int``) or 64 (``Long``).
    """

    bits: int
    minimum: int | None = None
    maximum: int | None = None
    also: int | None = None

    @property
    def type_name(self) -> str:
        """Kafka's name of the type."""
        return {16: "short", 32: "int"}.get(self.bits, "long")

    @property
    def valid(self) -> str:
        """The valid values in words."""
        if self.minimum is None:
            return ""
        limits = f"≥ {self.minimum}" if self.maximum is None else f"{self.minimum} to {self.maximum}"
        return limits if self.also is None else f"{limits}, or {self.also}"

    def parse(self, raw: Raw) -> int:
        """The value that ``raw`` stands for, or ValueError."""
        highest = 2 ** (self.bits - 1) - 1
        low = -highest - 1 if self.minimum is None else self.minimum
        high = highest if self.maximum is None else self.maximum
        value: int | None = None
        if isinstance(raw, int) and not isinstance(raw, bool):
            value = raw
        elif isinstance(raw, str) and _WHOLE.fullmatch(raw.strip()):
            value = int(raw)
        if value is None or not (low <= value <= high or value == self.also):
            also = "" if self.also is None else f", or {self.also}"
            raise ValueError(f"must be a whole number from {low} to {high}{also}")
        return value


Short, Int, Long = (partial(Whole, bits) for bits in (16, 32, 64))
"""Whole numbers of 16, 32 and 64 bits."""


@dataclass(frozen=True, slots=True)
class Double(Kind):
    """A finite number from ``minimum`` to ``maximum``, both included."""

    minimum: float = -math.inf
    maximum: float = math.inf

    type_name = "double"

    @property
    def valid(self) -> str:
        """The valid values in words."""
        if math.isfinite(self.maximum):
            return f"{self.minimum:g} to {self.maximum:g}"
        return f"≥ {self.minimum:g}" if math.isfinite(self.minimum) else ""

    def parse(self, raw: Raw) -> float:
        """The value that ``raw`` stands for, or ValueError."""
        value = math.nan
        if isinstance(raw, (int, float, str)) and not isinstance(raw, bool) and "_" not in str(raw):
            with suppress(ValueError, OverflowError):
                value = float(raw)
        if not math.isfinite(value) or not self.minimum <= value <= self.maximum:
            limits = f"from {self.valid}" if math.isfinite(self.maximum) else f"that is at least {self.minimum:g}"
            raise ValueError(f"must be a number {limits}" if self.valid else "must be a finite number")
        return value

    def text(self, value: Value) -> str:
        """The value as Kafka writes it."""
        return repr(value).replace("e+", "E").replace("e", "E")


HIDDEN: Final = "[hidden]"
"""Stands for a secret, as in Kafka's own log."""


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text; one of ``choices`` where there are any, in exactly that spelling."""

    choices: tuple[str, ...] = ()

    @property
    def valid(self) -> str:
        """The valid values in words."""
        return ", ".join(self.choices)

    def parse(self, raw: Raw) -> str:
        """The value that ``raw`` stands for, or ValueError."""
        if not isinstance(raw, str):
            raise ValueError(f"must be one of {self.valid}" if self.choices else "must be text")  # noqa: TRY004 - bad input, no bug
        value = raw.strip()
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {self.valid}")
        return value


class Secret(Text):
    """Text that is never shown."""

    type_name = "password"

    def text(self, value: Value) -> str:
        """The value as Kafka writes it."""
        return HIDDEN if value else ""


@dataclass(frozen=True, slots=True)
class Words(Kind):
    """A list of words, comma separated when written as text; each one of ``choices`` where there are any.

    An empty list is possible. A word written twice counts once.
    """

    choices: tuple[str, ...] = ()

    type_name = "list"

    @property
    def valid(self) -> str:
        """The valid values in words."""
        return f"of {', '.join(self.choices)}" if self.choices else ""

    def parse(self, raw: Raw) -> tuple[str, ...]:
        """The value that ``raw`` stands for, or ValueError."""
        words = split_list(raw)
        if words is None or "" in words:
            raise ValueError("must be a list of words with commas between them")
        if self.choices and not set(words) <= set(self.choices):
            raise ValueError(f"must be a list {self.valid}")
        return tuple(dict.fromkeys(words))


class Mechanisms(Words):
    """Mechanisms of SASL."""

    def parse(self, raw: Raw) -> tuple[str, ...]:
        """The value that ``raw`` stands for, or ValueError."""
        if "GSSAPI" in (split_list(raw) or ()):
            raise ValueError(f"must be a list {self.valid}: there is no GSSAPI (Kerberos) in seglog")
        return super().parse(raw)


class AuthorizerClass(Text):
    """A class of Kafka's that enforces rules, or none."""

    def parse(self, raw: Raw) -> str:
        """The value that ``raw`` stands for, or ValueError."""
        return "" if raw == "" else super().parse(raw)


class StoreType(Text):
    """The format of a keystore, which is PEM."""

    def parse(self, raw: Raw) -> str:
        """The value that ``raw`` stands for, or ValueError."""
        if isinstance(raw, str) and raw.strip() in {"JKS", "PKCS12"}:
            raise ValueError(
                "must be PEM: convert the keystore by openssl pkcs12 -in KEYSTORE.p12 -out KEYSTORE.pem, and a JKS to "
                "KEYSTORE.p12 before by keytool -importkeystore -srckeystore KEYSTORE.jks -destkeystore KEYSTORE.p12"
            )
        return super().parse(raw)


class Principals(Kind):
    """Principals as Kafka names them, ``TYPE:NAME``, with semicolons between several: a name may have commas.

    ``,User:`` in a name is refused, as it is the list of somebody who writes commas between several.
    """

    separator = ";"
    valid = "User:NAME, with semicolons between several"

    def parse(self, raw: Raw) -> tuple[str, ...]:
        """The value that ``raw`` stands for, or ValueError."""
        text = raw if isinstance(raw, str) else ";".join(map(str, raw)) if isinstance(raw, Sequence) else ":"
        words = [word.strip() for word in text.split(";") if word.strip()]
        for word in words:
            kind, _, name = word.partition(":")
            if kind != "User" or not name.strip():
                raise ValueError(f"must be {self.valid}")
            if re.search(r",\s*User:", name):
                raise ValueError(f"must be {self.valid}: a semicolon, not a comma, is between {shown(word)!r}")
            if name != name.strip():
                raise ValueError(f"must be {self.valid}: there is a space after User:, which would be of the name")
        return tuple(dict.fromkeys(words))


class AddressCounts(Kind):
    """Numbers for single addresses of a network, in Kafka's form."""

    valid = "ADDRESS:NUMBER, with commas between several, and addresses in digits"

    def parse(self, raw: Raw) -> tuple[str, ...]:
        """The value that ``raw`` stands for, or ValueError."""
        text = raw if isinstance(raw, str) else ",".join(map(str, raw)) if isinstance(raw, Sequence) else "-"
        words = [word.rpartition(":") for word in split_list(text) or () if word]
        try:
            return tuple([f"{ipaddress.ip_address(address)}:{int(number)}" for address, _, number in words])
        except ValueError:
            raise ValueError(f"must be {self.valid}") from None


class Replicas(Words):
    """Replicas as Kafka names them, each by its partition and broker; or all of them."""

    valid = "* or PARTITION:BROKER, with commas between several"

    def parse(self, raw: Raw) -> tuple[str, ...]:
        """The value that ``raw`` stands for, or ValueError."""
        words = tuple(word for word in split_list(raw) or () if word) if isinstance(raw, str) else super().parse(raw)
        if words != ("*",) and not all(re.fullmatch(r"[0-9]+:[0-9]+", word) for word in words):
            raise ValueError(f"must be {self.valid}")
        return tuple(dict.fromkeys(words))


class Directory(Kind):
    """The path of exactly one directory, where Kafka takes a list of them."""

    valid = "one path"

    def parse(self, raw: Raw) -> str:
        """The value that ``raw`` stands for, or ValueError."""
        paths = split_list(raw)
        if paths is not None and len(paths) > 1:
            raise ValueError(
                f"must name exactly one directory, not {len(paths)}: seglog keeps everything in one log directory; "
                "put several disks behind one file system, or run one seglogd for each"
            )
        if not paths or not paths[0] or "\0" in paths[0]:
            raise ValueError("must be the path of a directory")
        return re.sub("/+", "/", paths[0]).rstrip("/") or "/"  # file names are appended with a slash


@dataclass(frozen=True, slots=True)
class Address(Kind):
    """``HOST:PORT`` to listen on; port 0 is any free one, an IPv6 address stands in brackets.

    With ``optional`` the empty text stands for "do not listen". With ``has_protocol`` one of PROTOCOLS may come before
    it, as in ``SASL_SSL://0.0.0.0:9192``. Refusals show the ``example``.
    """

    optional: bool = False
    has_protocol: bool = False
    example: str = "127.0.0.1:9192"

    @property
    def valid(self) -> str:
        """The valid values in words."""
        return "HOST:PORT or empty" if self.optional else "HOST:PORT"

    def parse(self, raw: Raw) -> str:
        """The value that ``raw`` stands for, or ValueError."""
        value = raw.strip() if isinstance(raw, str) else None
        if value is None or (value == "" and not self.optional):
            raise ValueError(f"must be {self.valid}, for example {self.example}")
        if value and self.has_protocol and "://" in value:
            protocol, _, address = value.partition("://")
            if protocol.upper() not in PROTOCOLS:
                raise ValueError(f"must be HOST:PORT, or PROTOCOL://HOST:PORT with one of {', '.join(PROTOCOLS)}")
            split_address(address, self.example)
        elif value:
            split_address(value, self.example)
        return value


PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's security protocols."""

_LISTENER_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - they are looked for
"""Hosts that stand for every address of the machine."""


@dataclass(frozen=True, slots=True)
class Listeners(Kind):
    """Kafka's addresses, ``NAME://HOST:PORT``, comma separated when written as text; none for an empty text.

    The name is that of a security protocol, or one to which ``listener.security.protocol.map`` gives a protocol.
    Addresses that are advertised must be such as a client can reach.
    """

    is_advertised: bool = False

    type_name = "list"
    valid = "of NAME://HOST:PORT"

    def parse(self, raw: Raw) -> tuple[str, ...]:
        """The value that ``raw`` stands for, or ValueError."""
        listeners = split_list(raw)
        if listeners is None or "" in listeners:
            raise ValueError("must be a list of addresses such as PLAINTEXT://127.0.0.1:9092")
        for listener in listeners:
            _, host, port = split_listener(listener)
            if self.is_advertised and (host in ALL_ADDRESSES or not port):
                raise ValueError(f"must be addresses that clients can reach, which {listener} is not")
        return tuple(dict.fromkeys(listeners))


class ProtocolMap(Kind):
    """Security protocols of listeners, ``NAME:PROTOCOL``, comma separated when written as text; names in capitals."""

    valid = f"NAME:PROTOCOL, with commas between several; a protocol is {', '.join(PROTOCOLS)}"

    def parse(self, raw: Raw) -> tuple[str, ...]:
        """The value that ``raw`` stands for, or ValueError."""
        entries = split_list(raw)
        if entries is None:
            raise ValueError(f"must be {self.valid}")
        for entry in entries:
            name, _, protocol = entry.partition(":")
            if not _LISTENER_NAME.fullmatch(name) or protocol.upper() not in PROTOCOLS:
                raise ValueError(f"must be {self.valid}")
        return tuple(dict.fromkeys(entry.upper() for entry in entries))


class Listener(NamedTuple):
    """One of Kafka's addresses; the ``name`` is in capitals, as Kafka compares it."""

    name: str
    host: str
    port: int


def split_listener(listener: str) -> Listener:
    """``"PLAINTEXT://127.0.0.1:9092"`` -> its name, host and port; as in Kafka, no host stands for every address.

    Raises ValueError ("must be ...") when it is not such an address.
    """
    name, separator, address = listener.partition("://")
    if not separator or not _LISTENER_NAME.fullmatch(name):
        raise ValueError("must be addresses such as PLAINTEXT://127.0.0.1:9092")
    if address.startswith(":"):
        address = f"0.0.0.0{address}"  # noqa: S104 - as Kafka has it
    try:
        return Listener(name.upper(), *split_address(address))
    except ValueError:
        raise ValueError("must be NAME://HOST:PORT, for example PLAINTEXT://127.0.0.1:9092") from None


def split_address(address: str, example: str = "127.0.0.1:9192") -> tuple[str, int]:
    """``"127.0.0.1:9192"`` -> ``("127.0.0.1", 9192)``, ``"[::1]:0"`` -> ``("::1", 0)``.

    Raises ValueError ("must be ...", with the ``example``) when it is not such an address.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("must be HOST:PORT, with an IPv6 address in brackets as in [::1]:9192")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"must be HOST:PORT with a port from 0 to 65535, for example {example}")
    return host, int(port)


def join_address(host: str, port: int | str) -> str:
    """The inverse of ``split_address``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_list(raw: Raw) -> list[str] | None:
    """The words of a list, without the spaces around them; None when it is neither text nor a list of words."""
    if isinstance(raw, str):
        return [word.strip() for word in raw.split(",")] if raw.strip() else []
    if isinstance(raw, Sequence) and not isinstance(raw, (bytes, bytearray)):
        if not all(isinstance(word, str) and "," not in word for word in raw):  # as text, a comma would split it
            return None
        return [str(word).strip() for word in raw]
    return None
