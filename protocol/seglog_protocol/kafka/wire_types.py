"""How each type of Kafka's wire is read and written: for both, the lines of Python that do it, side by side.

In the lines that read, ``frame`` is the memoryview that is read, ``p`` a position in it and ``end`` its length. In
those that write, ``w`` is the bytearray that is written, and ``chunks`` gets it when records follow, which are not
copied. Before a length or a count is used it is held against the bytes that are left, so nothing large is made of a
small frame.

Lengths come in two forms. Flexible versions have an unsigned varint of the length plus one, and 0 for null; others
have an int16 or int32, negative for null.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct, calcsize
from typing import Any, Final, NamedTuple

from seglog_protocol.kafka import varints
from seglog_protocol.kafka.source import Source
from seglog_protocol.kafka.varints import ELEMENTS_IN_ALL_MAX, ELEMENTS_MAX, varint

HELPERS: Final[dict[str, Any]] = {name: value for name, value in vars(varints).items() if callable(value)}
"""What the lines call, among others."""

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of fixed width, with their codes of :mod:`struct`."""


class _Layouts(dict[int, Struct]):
    """So many numbers of one type, by how many."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __missing__(self, count: int) -> Struct:
        layout = Struct(f">{count}{self._code}")
        if count <= _KEPT_LAYOUTS:
            self[count] = layout
        return layout


RECORDS_COST: Final = 32
"""Bytes of a piece that stand for records: 500 partitions with them are one."""

_KEPT_LAYOUTS: Final = 64
_LAYOUTS: Final = {code: _Layouts(code) for code in FIXED.values() if code != FIXED["uuid"]}


class WireType(ABC):
    """A type in one version of a message."""

    minimum: int
    """The least number of bytes that a value takes."""

    @abstractmethod
    def read(self, out: Source, into: str) -> None:
        """Add the lines that read a value at ``p`` into the variable ``into``, and move ``p`` behind it."""

    @abstractmethod
    def write(self, out: Source, value: str) -> None:
        """Add the lines that write the value of the expression ``value``."""


class Fixed(WireType):
    """Numbers, booleans, uuids."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.minimum = calcsize(">" + code)

    def read(self, out: Source, into: str) -> None:
        out.fixed(self.code, into)

    def write(self, out: Source, value: str) -> None:
        out.fixed(self.code, value)


class Length:
    """The length before a value; in the lines, -1 stands for null."""

    read_varint = "read_varint"
    varint = "varint"

    def __init__(self, code: str, *, flexible: bool, nullable: bool) -> None:
        self.code = "B" if flexible else code
        self.flexible = flexible
        self.nullable = nullable
        self.minimum = calcsize(">" + self.code)

    def read(self, out: Source) -> str:
        """Returns the variable that holds it."""
        length = out.variable("n")
        out.fixed(self.code, length)
        if self.flexible:
            out(f"if {length} > 127: {length}, p = {self.read_varint}(frame, p - 1)")
            out(f"{length} -= 1")
        return length

    def of(self, out: Source, value: str) -> str:
        """Returns a variable with the length of the variable ``value``."""
        length = out.variable("n")
        out.ahead(
            f"{length} = -1 if {value} is None else len({value})" if self.nullable else f"{length} = len({value})"
        )
        return length

    def write(self, out: Source, length: str) -> None:
        if self.flexible:
            out(f"if {length} < 127: w.append({length} + 1)")
            out(f"else: w += {self.varint}({length} + 1)")
        else:
            out.fixed(self.code, length)

    @contextmanager
    def unless_null(self, out: Source, length: str, into: str, needed: str, error: str) -> Iterator[None]:
        """The lines in ``with`` read what is not null, of ``needed`` bytes at least. Else ``error(length, left)``."""
        if self.nullable:
            out(f"if {length} < 0: {into} = None")
            with out.block("else:"):
                out(f"if {needed} > end - p: raise {error}({length}, end - p)")
                yield
        else:
            out(f"if not 0 <= {needed} <= end - p: raise {error}({length}, end - p)")
            yield


class TextLength(Length):
    """That of a string: no more than an int16 holds, also where it is a varint, so that all versions can write it."""

    read_varint = "read_text_varint"
    varint = "text_varint"


class Data(WireType):
    """Bytes, copied out of the frame, which is not kept for them."""

    slice = "bytes(frame[p:q])"
    """What makes a value of the bytes from ``p`` to ``q``."""

    def __init__(self, length: Length) -> None:
        self.length = length
        self.minimum = length.minimum

    def read(self, out: Source, into: str) -> None:
        n = self.length.read(out)
        with self.length.unless_null(out, n, into, n, "bad_length"):
            out(f"q = p + {n}")
            out(f"{into} = {self.slice}")
            out("p = q")

    def write(self, out: Source, value: str) -> None:
        data = self.write_slice(out, value)
        n = self.length.of(out, data)
        self.length.write(out, n)
        self.write_data(out, data, n)

    def write_slice(self, out: Source, value: str) -> str:
        """Returns the variable that holds the bytes of ``value``, or None."""
        data = out.variable("data")
        out.ahead(f"{data} = {value}")
        return data

    def write_data(self, out: Source, data: str, n: str) -> None:
        """Write ``n`` bytes, -1 for null."""
        out(f"if {n} > 0: w += {data}")


class Text(Data):
    """Strings: UTF-8."""

    slice = "str(frame[p:q], 'utf-8')"

    def write_slice(self, out: Source, value: str) -> str:
        data = out.variable("data")
        if self.length.nullable:
            out.ahead(f"{data} = {value}")
            out.ahead(f"if {data} is not None: {data} = {data}.encode()")
        else:
            out.ahead(f"{data} = {value}.encode()")
        return data


class Records(Data):
    """Record batches, which are copied neither way: slices of the frame, and chunks of their own."""

    slice = "frame[p:q]"

    def write_data(self, out: Source, data: str, n: str) -> None:
        with out.block(f"if {n} > 0:"):
            out("chunks.append(w)")
            out(f"chunks.append({data})")
            out("w = bytearray()")
            out.count(RECORDS_COST)


class Array(WireType):
    """Lists."""

    def __init__(self, length: Length, element: WireType) -> None:
        self.length = length
        self.minimum = length.minimum
        self.element = element

    def read(self, out: Source, into: str) -> None:
        n = self.length.read(out)
        with self.length.unless_null(out, n, into, f"{n} * {max(1, self.element.minimum)}", "bad_count"):
            if out.is_bounded:
                out(f"if {n} > {ELEMENTS_MAX}: raise too_many({n})")
            if isinstance(self.element, Fixed) and self.element.code in _LAYOUTS:
                layouts = out.constant("layouts", _LAYOUTS[self.element.code])
                out(f"{into} = list({layouts}[{n}].unpack_from(frame, p))")
                out(f"p += {n} * {self.element.minimum}")
                return
            element = out.variable("e")
            if out.in_pieces and out.is_bounded:
                out(f"left -= {n}")
                out(f"if left < 0: raise too_many({ELEMENTS_IN_ALL_MAX} - left, {ELEMENTS_IN_ALL_MAX})")
            out(f"{into} = []")
            with out.block(f"for _ in range({n}):"):
                self.element.read(out, element)
                out(f"{into}.append({element})")
                out.pause()

    def write(self, out: Source, value: str) -> None:
        elements = out.variable("l")
        out.ahead(f"{elements} = {value}")
        n = self.length.of(out, elements)
        self.length.write(out, n)
        if isinstance(self.element, Fixed) and self.element.code in _LAYOUTS:
            layouts = out.constant("layouts", _LAYOUTS[self.element.code])
            out(f"if {n} > 0: w += {layouts}[{n}].pack(*{elements})")
            return
        element = out.variable("e")
        with out.block(
            f"for {element} in {elements} or ():" if self.length.nullable else f"for {element} in {elements}:"
        ):
            self.element.write(out, element)
            out.pause()


class Member(NamedTuple):
    """A field of a struct, in a version that has it."""

    name: str
    type: WireType
    tag: int | None
    """None if it stands in its place, not among the tagged fields."""


class Structure(WireType):
    """A struct: its fields one after the other; in flexible versions, tagged fields behind them.

    - ``defaults`` are those of all fields that the class has, as Python, in its order.
    - ``null``: where it can be null, a byte before it says whether it is: this one or below. It is 1 otherwise.
    """

    def __init__(
        self,
        cls: type[Any],
        defaults: Mapping[str, str],
        members: Sequence[Member],
        *,
        flexible: bool,
        null: int | None,
    ) -> None:
        self.cls = cls
        self.defaults = defaults
        self.plain = [member for member in members if member.tag is None]
        self.tagged = sorted(
            (member for member in members if member.tag is not None), key=lambda member: member.tag or 0
        )
        self.flexible = flexible
        self.null = null
        self.minimum = 1 if null is not None else flexible + sum(member.type.minimum for member in self.plain)

    def read(self, out: Source, into: str) -> None:
        if self.null is not None:
            flag = out.variable("flag")
            out.fixed("b", flag)
            out(f"if {flag} <= {self.null}: {into} = None")
            with out.block("else:"):
                self._read_fields(out, into)
        else:
            self._read_fields(out, into)

    def write(self, out: Source, value: str) -> None:
        if self.null is not None:
            out(f"if {value} is None: w += {self.null.to_bytes(1, signed=True)!r}")
            with out.block("else:"):
                out.fixed("b", "1")
                self._write_fields(out, value)
        else:
            self._write_fields(out, value)

    def _read_fields(self, out: Source, into: str) -> None:
        values = dict(self.defaults)
        for member in self.plain:
            values[member.name] = out.variable("v")
            with out.about(member.name):
                member.type.read(out, values[member.name])
        if self.flexible:
            self._read_tags(out, values)
        out(f"{into} = {out.constant('new', self.cls)}({', '.join(values.values())})")

    def _write_fields(self, out: Source, value: str) -> None:
        for member in self.plain:
            with out.about(member.name):
                member.type.write(out, f"{value}.{member.name}")
        if self.flexible:
            self._write_tags(out, value)

    def _read_tags(self, out: Source, values: dict[str, str]) -> None:
        count = out.variable("tags")
        out.fixed("B", count)
        for member in self.tagged:
            values[member.name] = out.variable("v")
            out(f"{values[member.name]} = {self._default(out, member)}")
        with out.block(f"if {count}:"):
            out(f"if {count} > 127: {count}, p = read_varint(frame, p - 1)")
            if self.tagged:
                self._read_known_tags(out, count, values)
            else:
                out(f"p = skip_tags(frame, p, end, {count})")

    def _read_known_tags(self, out: Source, count: str, values: dict[str, str]) -> None:
        """Those that are not known are skipped; of those that come twice, the last one counts."""
        tag, tag_end = out.variable("tag"), out.variable("q")
        out(f"check_tags({count}, end - p)")
        with out.block(f"for _ in range({count}):"):
            out(f"{tag}, p, {tag_end} = read_tag(frame, p, end)")
            for member in self.tagged:
                with out.block(f"if {tag} == {member.tag}:"), out.about(member.name):
                    member.type.read(out, values[member.name])
                    out(f"if p != {tag_end}: raise bad_tag(p - {tag_end})")
            out(f"p = {tag_end}")

    def _write_tags(self, out: Source, value: str) -> None:
        """Fields that have their default are left out."""
        if not self.tagged:
            out.fixed("x", "")
            return
        count, tags, outer = out.variable("tags"), out.variable("tagged"), out.variable("outer")
        out(f"{count}, {tags} = 0, b''")
        for member in self.tagged:
            field = f"{value}.{member.name}"
            with out.block(f"if {self._differs(out, member, field)}:"):
                out(f"{outer}, w = w, bytearray()")
                member.type.write(out, field)
                out(f"{tags} += {varint(member.tag or 0)!r} + varint(len(w)) + w")
                out(f"w = {outer}")
                out(f"{count} += 1")
        out(f"w.append({count})")
        out(f"w += {tags}")

    def _default(self, out: Source, member: Member) -> str:
        default = self.defaults[member.name]
        if default != "None" and isinstance(member.type, Structure):
            return f"{out.constant('new', member.type.cls)}()"
        return default

    def _differs(self, out: Source, member: Member, field: str) -> str:
        """Whether ``field`` is not its default; for Kafka, that of a struct is a struct of defaults."""
        default = self._default(out, member)
        if default != "None":
            return f"{field} != {default}"
        if isinstance(member.type, Structure):
            return f"{field} is not None and {field} != {out.constant('default', member.type.cls())}"
        return f"{field} is not None"
