import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.arrow.ddl import parse_ddl, to_ddl
from tests.support import each_case, examples

NAMES = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=5)
WORDS = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp"]
KINDS = st.recursive(
    st.sampled_from(WORDS).map(parse_ddl) | st.integers(1, 38).map(lambda digits: pa.decimal128(digits, digits // 2)),
    lambda inner: (
        inner.map(lambda kind: pa.list_(pa.field("element", kind)))
        | st.tuples(inner, inner).map(lambda kinds: pa.map_(*kinds))
        | st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(lambda fields: pa.struct(fields.items()))
    ),
    max_leaves=8,
)


@settings(max_examples=examples(1000))
@given(KINDS)
def test_types_are_words_and_back(kind: pa.DataType) -> None:
    assert parse_ddl(to_ddl(kind)) == kind


def test_sparks_other_spellings_are_read() -> None:
    text = "A: Long, b STRUCT<`c d`: numeric(3 , 2), e: dec>, f array<timestamp_ntz>,\n g map<string,byte>"
    expected = (
        "A bigint, b struct<`c d`: decimal(3,2), e: decimal(10,0)>, f array<timestamp_ntz>, g map<string, tinyint>"
    )
    assert to_ddl(parse_ddl(text)) == expected


@each_case(
    "text, said",
    [
        ("", "its end at character 1, in place of a type"),
        ("a intt", "'intt' at character 3, in place of a type"),
        ("a int b", "'b' at character 7, in place of a comma"),
        ("a int,", "its end at character 7, in place of the name"),
        ("a array<int", "its end at character 12, in place of '>'"),
        ("a map<int>", "'>' at character 10, in place of ','"),
        ("a decimal(39,2)", "'decimal(39,2)' at character 3, in place of a decimal"),
        ("a int, a int", "'a' at character 8, in place of another name"),
        ("a int NOT NULL", "'NOT' at character 7"),
        ("a string; b", "';' at character 9"),
    ],
)
def test_an_error_names_the_place(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_ddl(text)
    assert said in str(caught.value)
