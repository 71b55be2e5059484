"""JSON as columns: text that is checked, or fields by a schema; and the schema of a sample.

Each value is one JSON document. Fields are read as Spark's ``from_json`` reads them where it reads anything: a field
that is missing, or null, is null; of a key that is there twice the last one counts; a field that the schema does not
have is dropped; ``string`` takes numbers, lists and objects as their JSON text; ``binary`` is base64, dates and times
are as in RFC 3339. What Spark turns into null in silence is Unfit.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Annotated, Any, Final, TypedDict

import msgspec
import pyarrow as pa

from seglog.arrow.ddl import parse_ddl, quoted
from seglog.arrow.fitting import Format, Unfit, text_of

_BIGINT: Final = range(-(2**63), 2**63)
_SCALE_MAX: Final = 38
"""Of any decimal."""
_LEVELS_MAX: Final = 20
"""Of a schema that is inferred: tables end at some 40, and what lies deeper is text."""


class JsonText(Format):
    """Checked JSON as text."""

    type = pa.string()

    def __init__(self) -> None:
        self._syntax = msgspec.json.Decoder(msgspec.Raw)

    def check(self, value: bytes) -> bytes:
        """The document. Raises Unfit."""
        document = _document(value)
        _decoded(self._syntax, document)
        return document


class JsonFields(Format):
    """JSON as the type of a schema, in Spark's words. Raises ValueError for one that JSON has no values for."""

    def __init__(self, schema: str) -> None:
        self.type = parse_ddl(schema)
        self._has_decimals = "decimal" in str(self.type)
        self._strict: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_python(self.type, str))
        self._lenient: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_python(self.type, msgspec.Raw))

    def check(self, value: bytes) -> Any:
        """The fields. Raises Unfit."""
        document = _document(value)
        try:
            found = _decoded(self._strict, document)
        except Unfit:
            found = _with_texts(_decoded(self._lenient, document))
        if self._has_decimals:
            _check_decimals(found)
        return found


def _document(value: bytes) -> bytes:
    """The document, without the five bytes that Confluent's serializer puts before it."""
    document = value[5:] if value[:1] == b"\0" else value
    text_of(document)
    return document


def _decoded(decoder: "msgspec.json.Decoder[Any]", document: bytes) -> Any:
    try:
        return decoder.decode(document)
    except msgspec.ValidationError as error:
        raise Unfit(f"JSON of another shape ({error})") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unfit(f"no JSON ({str(error).removeprefix('JSON is malformed: ')})") from None


def _python(kind: pa.DataType, text: Any) -> Any:
    """The type of Python that msgspec is to find, with ``text`` in place of strings."""
    if pa.types.is_struct(kind):
        return TypedDict("Fields", {f.name: _python(f.type, text) for f in kind}, total=False) | None  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_python(kind.value_type, text)] | None  # type: ignore[misc]
    if pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise ValueError(f"keys of an object in JSON are strings, and the schema has {kind}")
        return dict[str, _python(kind.item_type, text)] | None  # type: ignore[misc]
    if pa.types.is_integer(kind):
        most = 1 << kind.bit_width - 1
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)] | None
    if kind == pa.string():
        return text if text is msgspec.Raw else text | None
    tests = {
        bool: pa.types.is_boolean,
        float: pa.types.is_floating,
        Decimal: pa.types.is_decimal,
        date: pa.types.is_date,
        datetime: pa.types.is_timestamp,
    }
    return next((python for python, is_it in tests.items() if is_it(kind)), bytes) | None


def _check_decimals(value: Any) -> None:
    """Raise Unfit for digits too far behind the point: pyarrow makes 0 of them, or ends the process."""
    if isinstance(value, Decimal):
        if value.is_finite() and int(value.as_tuple().exponent) < -_SCALE_MAX:
            raise Unfit(f"beyond its type (more than {_SCALE_MAX} digits behind the point)")
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            _check_decimals(member)


def _with_texts(value: Any) -> Any:
    """The value with a string in place of each piece of JSON."""
    if isinstance(value, msgspec.Raw):
        text = bytes(value)
        return msgspec.json.decode(text) if text[:1] in {b'"', b"n"} else text.decode()
    if isinstance(value, dict):
        return {name: _with_texts(member) for name, member in value.items()}
    return [_with_texts(item) for item in value] if isinstance(value, list) else value


# --- The schema of a sample -------------------------------------------------------------------------------------------


def infer_ddl(values: Iterable[bytes | None]) -> str:
    """The schema of these JSON documents, as ``parse_ddl`` reads it; others are passed over.

    A field is what all its values are; ``double`` for whole numbers and others, else ``string``, which takes all. So
    is one that is always null, or is an object without fields. Raises ValueError when none is a document.
    """
    documents = []
    for value in values:
        if value is not None:
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                documents.append(msgspec.json.decode(value[5:] if value[:1] == b"\0" else value))
    if all(document is None for document in documents):
        raise ValueError("no value of the sample is JSON, so it shows no schema: declare one, or take them as string")
    kind = _kind_of(documents)
    return kind.removeprefix("struct<").removesuffix(">") if kind.startswith("struct") else kind


def _kind_of(values: Sequence[Any], levels: int = _LEVELS_MAX) -> str:
    """What all these values are that are not null."""
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    if kinds == {dict} and any(there) and levels:
        names = dict.fromkeys(chain.from_iterable(there))
        fields = [f"{quoted(name)} {_kind_of([value.get(name) for value in there], levels - 1)}" for name in names]
        return f"struct<{', '.join(fields)}>"
    if kinds == {list} and levels:
        return f"array<{_kind_of(list(chain.from_iterable(there)), levels - 1)}>"
    if kinds == {bool}:
        return "boolean"
    if kinds and kinds <= {int, float} and all(type(value) is float or value in _BIGINT for value in there):
        return "bigint" if kinds == {int} else "double"
    return "string"
