"""The columns of a topic, with the names, order and types of Spark's Kafka source.

    key            binary                  null: none
    value          binary                  null: none (a tombstone)
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, tz=UTC]   null: none (-1 in the log)
    timestampType  int32                   0 CreateTime, 1 LogAppendTime
    headers        list<struct<key: string, value: binary>>, null: none; only if requested

``key`` and ``value`` are strings where text is asked for.

Spark shows a record without a timestamp as one millisecond before 1970; here it is null.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])

HEADERS: Final = pa.field("headers", pa.list_(pa.field("element", HEADER)))

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""The default columns."""

_FIELDS: Final = {field.name: field for field in (*SCHEMA, HEADERS)}


def schema_of(columns: Sequence[str] | None = None, *, headers: bool = False) -> pa.Schema:
    """The schema of ``columns`` in their order; None: all, ``headers`` only if it is True.

    Raises ValueError for an unknown or duplicate name.
    """
    if columns is None:
        return SCHEMA.append(HEADERS) if headers else SCHEMA
    names = list(columns)
    if headers and HEADERS.name not in names:
        names.append(HEADERS.name)
    for name in names:
        if name not in _FIELDS:
            raise ValueError(f"a topic has no column {name!r}; there are {', '.join(_FIELDS)}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"columns must name one column or more, each once, not {names}")
    return pa.schema([_FIELDS[name] for name in names])


# ``pyarrow.scalar`` and ``pyarrow.array`` import pandas, if installed, to inspect Python values and numpy arrays. That
# import takes longer than everything else here together, so this package uses buffers.


def numbers_array(kind: pa.DataType, numbers: npt.NDArray[Any]) -> pa.Array:
    """``numbers`` as an array of ``kind``, which has the same item size; without nulls and without a copy."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def constant(kind: pa.DataType, content: bytes) -> pa.Scalar:
    """``content`` as a scalar of ``kind``, which is binary or text."""
    bounds = np.array([0, len(content)], np.int32)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bounds), pa.py_buffer(content)])[0]
