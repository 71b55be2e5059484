import pyarrow as pa
import pytest

from seglog.arrow.ddl import parse_ddl
from tests.support import each_case


def test_sparks_words_are_types_in_any_spelling() -> None:
    text = "A: Long, b STRUCT<`c d`: numeric(3 , 2), `e``f`: dec>, f array<timestamp_ntz>,\n g map<string,byte>"
    inner = pa.struct([("c d", pa.decimal128(3, 2)), ("e`f", pa.decimal128(10, 0))])
    array = pa.list_(pa.field("element", pa.timestamp("us")))
    expected = [("A", pa.int64()), ("b", inner), ("f", array), ("g", pa.map_(pa.string(), pa.int8()))]
    assert parse_ddl(text) == pa.struct(expected)
    assert parse_ddl("array<int>") == pa.list_(pa.field("element", pa.int32()))


@each_case(
    "text, said",
    [
        ("", "its end at character 1, in place of a type"),
        ("a intt", "'intt' at character 3, in place of a type"),
        ("a int b", "'b' at character 7, in place of a comma"),
        ("a int,", "its end at character 7, in place of the name"),
        ("a array<int", "its end at character 12, in place of '>'"),
        ("a map<int>", "'>' at character 10, in place of ','"),
        ("a decimal(39,2)", "decimal(39,2), and a decimal has 1 to 38 digits"),
        ("a decimal(2,3)", "decimal(2,3), and a decimal has 1 to 38 digits"),
        ("a int, a int", "has the field a twice"),
        ("a int NOT NULL", "'NOT' at character 7"),
        ("a string; b", "';' at character 9"),
    ],
)
def test_an_error_names_the_place(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_ddl(text)
    assert said in str(caught.value)
