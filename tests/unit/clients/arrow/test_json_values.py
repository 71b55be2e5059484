import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.arrow.ddl import parse_ddl
from seglog.arrow.json_values import JsonFields
from seglog.arrow.values import Values
from tests.support import each_case, examples
from tests.unit.clients.arrow.tables import decoded as decoded_by

SCHEMA = "id bigint, name string, share double, ok boolean, tags array<string>, by struct<at: int, who: string>"
WITH_MAP = f"{SCHEMA}, counts map<string, int>"


def decoded(schema: str | None, *rows: bytes | None) -> tuple[list[Any], list[tuple[int, str]]]:
    return decoded_by(Values("json", schema), *rows)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(['"}', "\n", "\\", "]}\n{"])
DOCUMENTS = st.fixed_dictionaries(
    {
        "id": optional(st.integers(-(2**63), 2**63 - 1)),
        "name": optional(TEXTS),
        "share": optional(st.floats(allow_nan=False, allow_infinity=False)),
        "ok": optional(st.booleans()),
        "tags": optional(st.lists(optional(TEXTS), max_size=3)),
        "by": optional(st.fixed_dictionaries({"at": st.integers(-(2**31), 2**31 - 1), "who": optional(TEXTS)})),
        "counts": optional(st.dictionaries(TEXTS, optional(st.integers(0, 9)), max_size=2)),
    }
)
ROWS = st.one_of(
    st.none(),
    st.just(b"null"),
    st.tuples(DOCUMENTS, st.sampled_from([None, 0, 1])).map(lambda both: json.dumps(both[0], indent=both[1]).encode()),
)
BROKEN = st.sampled_from(
    [
        (b"", "no JSON (Input data was truncated)"),
        (b'{"id":1', "no JSON (Input data was truncated)"),
        (b'{"id":1} {"id":2}', "no JSON (trailing characters"),
        (b'{"id":1},"w":{"id":2}', "no JSON (trailing characters"),
        (b"}\n{", "no JSON (invalid character (byte 0))"),
        (b'{"share":NaN}', "no JSON (invalid character (byte 9))"),
        (b'{"name":"\xff"}', "no UTF-8 (byte 0xff at 9)"),
        (b'{"z":' + b"[" * 5000, "no JSON (maximum recursion depth exceeded"),
        (b"[1]", "JSON of another shape (Expected `object | null`, got `array`)"),
        (b'"text"', "JSON of another shape (Expected `object | null`, got `str`)"),
        (b'{"id":"1"}', "JSON of another shape (Expected `int | null`, got `str` - at `$.id`)"),
        (b'{"id":9223372036854775808}', "JSON of another shape (Expected `int` <= 9223372036854775807 - at `$.id`)"),
        (b'{"id":1.5}', "JSON of another shape (Expected `int | null`, got `float` - at `$.id`)"),
        (
            b'{"tags":["a",{}],"by":{"at":2147483648}}',
            "JSON of another shape (Expected `int` <= 2147483647 - at `$.by.at`)",
        ),
    ]
)


@settings(max_examples=examples(2000))
@given(st.sampled_from([SCHEMA, WITH_MAP]), st.lists(ROWS | BROKEN, max_size=40))
def test_rows_keep_their_places_among_those_that_do_not_fit(schema: str, rows: list[Any]) -> None:
    values, misfits = decoded(schema, *(row[0] if isinstance(row, tuple) else row for row in rows))
    names = [field.name for field in JsonFields(schema).type]
    for row, value in zip(rows, values, strict=True):
        document = None if row is None or isinstance(row, tuple) else json.loads(row)
        assert value == (document and {name: document[name] for name in names})
    broken = [(number, row[1]) for number, row in enumerate(rows) if isinstance(row, tuple)]
    assert [number for number, _ in misfits] == [number for number, _ in broken]
    for (_, said), (_, expected) in zip(misfits, broken, strict=True):
        assert said.startswith(expected)


@each_case(
    "schema, text, value",
    [
        ("a string", b'{"a": {"b" : [1, 2.50]}}', {"a": '{"b" : [1, 2.50]}'}),
        ("a string", b'{"a": 10000000000000000000000}', {"a": "10000000000000000000000"}),
        ("a string, b int", b'{"z": 1, "b": 2, "a": true}', {"a": "true", "b": 2}),
        ("a int", b'{"a": 1, "a": 2}', {"a": 2}),
        ("a int", b'{"b": 1, "b": {"a": 5}}', {"a": None}),
        ("a int", b'\0\0\0\0\7{"a": 1}', {"a": 1}),
        ("a decimal(20,2)", b'{"a": 123456789012345678.25}', "123456789012345678.25"),
        ("a date", b'{"a": "2024-02-29"}', "2024-02-29"),
        ("a timestamp", b'{"a": "2024-02-29T01:00:00+01:00"}', "2024-02-29 00:00:00+00:00"),
        ("a timestamp_ntz", b'{"a": "2024-02-29T01:00:00.5"}', "2024-02-29 01:00:00.500000"),
        ("a timestamp", b'{"a": "2024-02-29T01:00:00.123456789Z"}', "2024-02-29 01:00:00.123457+00:00"),
        ("a binary", b'{"a": "/w=="}', {"a": b"\xff"}),
        ("array<map<string,int>>", b'[{"x": 1}, null, {}]', [{"x": 1}, None, {}]),
        ("string", b"5", "5"),
        ("`odd name` int", b'{"odd name": 5}', {"odd name": 5}),
    ],
)
def test_values_are_read_as_spark_reads_them(schema: str, text: bytes, value: Any) -> None:
    (found,), misfits = decoded(schema, text)
    assert (str(found["a"]) if schema.startswith("a ") and isinstance(value, str) else found) == value
    assert not misfits


@each_case(
    "schema, text, said",
    [
        ("a date", b'{"a":"2024-02-30"}', "JSON of another shape (Invalid RFC3339 encoded date - at `$.a`)"),
        ("a timestamp", b'{"a":5}', "JSON of another shape (Expected `datetime | null`, got `int` - at `$.a`)"),
        ("a binary", b'{"a":"*"}', "JSON of another shape (Invalid base64 encoded string - at `$.a`)"),
        ("a decimal(3,1)", b'{"a":1.25}', "beyond its type (Rescaling Decimal value would cause data loss)"),
        ("a decimal(3,1)", b'{"a":1234}', "beyond its type (Decimal type with precision 4"),
        ("a decimal(3,1)", b'{"a":1e-77}', "beyond its type (more than 38 digits behind the point)"),
        ("a array<map<string,decimal(3,1)>>", b'{"a":[{"b":"1e-77"}]}', "beyond its type (more than 38 digits"),
    ],
)
def test_what_a_type_does_not_hold_is_a_misfit_of_its_row(schema: str, text: bytes, said: str) -> None:
    rows = [b'{"a":null}'] * 1500
    values, ((row, reason),) = decoded(schema, *rows, text, *rows)
    assert values == [{"a": None}] * 1500 + [None] + [{"a": None}] * 1500
    assert row == 1500
    assert reason.startswith(said)


def test_json_without_a_schema_is_text_that_is_checked() -> None:
    assert decoded(None, b' {"a": 1}', None, b"[]", b"nul", b"\0\0\0\0\1null") == (
        [' {"a": 1}', None, "[]", None, "null"],
        [(3, "no JSON (Input data was truncated)")],
    )


@each_case(
    "sample, schema",
    [
        (
            [b'{"a": 1, "b`c": true}', None, b'{"a": 2.5, "d": {"e": [1, null]}}'],
            "a double, `b``c` boolean, d struct<e array<bigint>>",
        ),
        ([b'{"a": 1, "b": {}}', b'{"a": "x"}', b"{", b"\0\0\0\0\1null"], "a string, b string"),
        ([b"[5]"], "array<bigint>"),
        ([b'{"a":[' * 400 + b"1" + b"]}" * 400], "a array<struct<" * 9 + "a array<string>" + ">>" * 9),
    ],
)
def test_a_schema_is_inferred_that_takes_the_sample(sample: list[bytes | None], schema: str) -> None:
    assert Values("json").inferred(sample).schema == schema
    assert parse_ddl(schema)
