"""Spark's words for types, such as ``id bigint, tags array<string>``, from and to Arrow's.

Both have these: boolean, tinyint, smallint, int, bigint, float, double, decimal(P,S), string, binary, date, timestamp
(with a zone), timestamp_ntz, array<T>, map<K,V>, struct<NAME:T,...>. The names byte, short, integer, long, real, dec,
numeric and timestamp_ltz are read too. Names of fields that are no words stand in backquotes.
"""

import re
from typing import Final, NoReturn

import pyarrow as pa

_SCALARS: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_OTHER_NAMES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_WORDS: Final = {kind: word for word, kind in _SCALARS.items()}
_TYPE: Final = rf"{'|'.join([*_SCALARS, *_OTHER_NAMES])}|array|map|struct|(decimal|dec|numeric)(\W.*)?"
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|\w+(?:\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\))?|.|$)", re.DOTALL)


def parse_ddl(text: str) -> pa.DataType:
    """The type that ``text`` describes; a list of fields is a struct.

    Raises ValueError, which names the place, for anything else.
    """
    return _Parser(text).whole()


def to_ddl(kind: pa.DataType) -> str:
    """The words for a type, the fields of a struct without ``struct<...>``; the inverse of ``parse_ddl``."""
    if pa.types.is_struct(kind):
        return ", ".join(f"{_name(field.name)} {_words(field.type)}" for field in kind)
    return _words(kind)


def _words(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_name(field.name)}: {_words(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{_words(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_words(kind.key_type)}, {_words(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _WORDS[kind]


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [(found.start(1), found[1]) for found in _TOKEN.finditer(text)]
        self._at = 0

    @property
    def _word(self) -> str:
        """The next token; empty at the end."""
        return self._tokens[self._at][1]

    def whole(self) -> pa.DataType:
        is_type = len(self._tokens) < 3 or self._tokens[1][1] == "<"
        kind = self._type() if is_type else self._fields()
        self._take("", "a comma, or the end")
        return kind

    def _type(self) -> pa.DataType:
        word = self._take(_TYPE, f"a type ({', '.join(_SCALARS)}, decimal(P,S), array<T>, map<K,V>, struct<NAME:T>)")
        word = _OTHER_NAMES.get(word.lower(), word.lower())
        if word in _SCALARS:
            return _SCALARS[word]
        if word not in {"array", "map", "struct"}:
            numbers = [int(number) for number in re.findall(r"\d+", word)] or [10]
            digits, scale = (*numbers, 0)[:2]
            if not 1 <= digits <= 38 or scale > digits:
                self._refuse(self._at - 1, "a decimal of 1 to 38 digits, some of which are behind the point")
            return pa.decimal128(digits, scale)
        self._take("<", "'<'")
        if word == "struct":
            kind = self._fields()
        elif word == "array":
            kind = pa.list_(pa.field("element", self._type()))
        else:
            key = self._type()
            self._take(",", "','")
            kind = pa.map_(key, self._type())
        self._take(">", "'>'")
        return kind

    def _fields(self) -> pa.DataType:
        fields: dict[str, pa.DataType] = {}
        while not fields or self._word == ",":
            self._at += bool(fields)
            name = self._take(r"`.*`|\w+", "the name of a field")
            name = name[1:-1].replace("``", "`") if name[0] == "`" else name
            if name in fields:
                self._refuse(self._at - 1, "another name: there is this one already")
            self._at += self._word == ":"
            fields[name] = self._type()
        return pa.struct(fields.items())

    def _take(self, pattern: str, wanted: str) -> str:
        """The next token, which has to be what is ``wanted``."""
        if not re.fullmatch(pattern, self._word, re.DOTALL | re.IGNORECASE):
            self._refuse(self._at, wanted)
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _refuse(self, at: int, wanted: str) -> NoReturn:
        position, token = self._tokens[at]
        raise ValueError(
            f"the schema {self._text!r} has {repr(token) if token else 'its end'} at character {position + 1}, in "
            f"place of {wanted}"
        )
