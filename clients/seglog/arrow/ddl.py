"""Spark's words for types, such as ``id bigint, tags array<string>``, as Arrow's types.

Both have these: boolean, tinyint, smallint, int, bigint, float, double, decimal(P,S), string, binary, date, timestamp
(with a zone), timestamp_ntz, array<T>, map<K,V>, struct<NAME:T,...>. The names byte, short, integer, long, real, dec,
numeric and timestamp_ltz are read too. Names of fields that are no words stand in backquotes.
"""

import re
from typing import Final

import pyarrow as pa

_SCALARS: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TYPE: Final = rf"{'|'.join(_SCALARS)}|array|map|struct|(decimal|dec|numeric)(\W.*)?"
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|\w+(?:\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\))?|.|$)", re.DOTALL)


def quoted(name: str) -> str:
    """The name of a field as ``parse_ddl`` reads it."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"


def parse_ddl(text: str) -> pa.DataType:
    """The type that ``text`` describes; a list of fields is a struct.

    Raises ValueError, which names the place, for anything else.
    """
    tokens = [(found[1], found.start(1)) for found in _TOKEN.finditer(text)]
    is_type = len(tokens) < 3 or tokens[1][0] == "<"
    tokens.reverse()

    def take(pattern: str, wanted: str) -> str:
        """The next token, which has to be what is ``wanted``."""
        token, at = tokens[-1]
        if not re.fullmatch(pattern, token, re.DOTALL | re.IGNORECASE):
            found = repr(token) if token else "its end"
            raise ValueError(f"the schema {text!r} has {found} at character {at + 1}, in place of {wanted}")
        tokens.pop()
        return token

    def one_type() -> pa.DataType:
        word = take(_TYPE, f"a type ({', '.join(_SCALARS)}, decimal(P,S), array<T>, map<K,V>, struct<NAME:T>)").lower()
        if word in _SCALARS:
            return _SCALARS[word]
        if word not in {"array", "map", "struct"}:
            digits, scale = (*map(int, re.findall(r"\d+", word) or [10]), 0)[:2]
            if not scale <= digits <= 38 or not digits:
                raise ValueError(f"the schema {text!r} has {word}, and a decimal has 1 to 38 digits with its scale")
            return pa.decimal128(digits, scale)
        take("<", "'<'")
        if word == "struct":
            kind = fields()
        elif word == "array":
            kind = pa.list_(pa.field("element", one_type()))
        else:
            key = one_type()
            take(",", "','")
            kind = pa.map_(key, one_type())
        take(">", "'>'")
        return kind

    def fields() -> pa.DataType:
        found: dict[str, pa.DataType] = {}
        while not found or tokens[-1][0] == ",":
            if found:
                tokens.pop()
            name = take(r"`.*`|\w+", "the name of a field")
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            if name in found:
                raise ValueError(f"the schema {text!r} has the field {name} twice")
            if tokens[-1][0] == ":":
                tokens.pop()
            found[name] = one_type()
        return pa.struct(found.items())

    kind = one_type() if is_type else fields()
    take("", "a comma, or the end")
    return kind
