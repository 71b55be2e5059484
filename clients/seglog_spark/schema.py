"""The columns of a row, those of Spark's Kafka connector, with Spark's type names."""

from collections.abc import Sequence
from typing import Final

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": HEADERS_TYPE,
}
"""Column -> Spark's name of its type, in the order of rows; ``headers`` only with includeHeaders."""


def ddl(*, include_headers: bool) -> str:
    """The default schema of a read."""
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "headers" or include_headers)


def check_columns(columns: Sequence[tuple[str, str, bool]], *, include_headers: bool) -> tuple[str, ...]:
    """The names of a user's columns (name, type, whether null is allowed); ValueError with a sentence.

    Any of the columns in any order; other columns are neither decoded nor sent to Spark.
    """
    for name, kind, nullable in columns:
        if name not in COLUMNS:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(COLUMNS)}")
        if kind != COLUMNS[name]:
            raise ValueError(f"the column {name} is {COLUMNS[name]}, not {kind}; cast it after the read")
        if not nullable:
            raise ValueError(f"the column {name} cannot be NOT NULL: Spark takes columns of a source as nullable")
        if name == "headers" and not include_headers:
            raise ValueError("the column headers needs .option('includeHeaders', 'true')")
    names = tuple(name for name, _, _ in columns)
    if len(set(names)) != len(names):
        raise ValueError("a column is named twice")
    return names
