"""Columns of Spark with what values hold: the schemas are those of ``seglog.Values``."""

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from seglog.arrow.values import Decode, Values

if TYPE_CHECKING:
    from pyspark.sql import Column

_FRAME: Final = 5
_REST: Final = 2**31 - 1


def from_value(column: "Column | str", values: Values) -> "Column":
    """What the bytes of ``column`` hold.

    JSON with a schema is Spark's own ``from_json``, without the five bytes of a serializer with a registry; of a
    document that does not fit, fields are null. All else is read by workers as ``read_arrow`` reads it, and is null
    where it does not fit: for Avro and Protobuf they need the extra ``values``, and no jar.

    Raises ValueError for a schema that is none, and PySparkTypeError for a type that Spark lacks.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - only where there is Spark
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415

    content: Any = functions.col(column) if isinstance(column, str) else column
    if values.kind == "json" and values.schema:
        is_framed = functions.substring(content, 1, 1) == functions.lit(b"\0")
        bare = functions.when(is_framed, functions.substring(content, _FRAME + 1, _REST)).otherwise(content)
        return functions.from_json(bare.cast("string"), str(values.schema))

    def decoded(content: pa.Array) -> pa.Array:
        return _decoder(values)(content)[0]

    kind, _ = values.decoder()
    as_it_is: Column = functions.arrow_udf(decoded, from_arrow_type(kind, prefer_timestamp_ntz=True))(content)
    return as_it_is


@cache
def _decoder(values: Values) -> Decode:
    """One for all batches of a worker."""
    return values.decoder()[1]
