"""Topics as Arrow tables, and tables as topics: vectorised, without a Python object per record.

    schema    columns for reading, those of Spark's Kafka source
    columns   columns for writing
    varints   varints of many numbers at once
    decoding  verified batches -> pyarrow.RecordBatch
    reading   ``read_arrow``
    encoding  columns -> record batches, and their partitions
    writing   ``write_arrow``
    values    what values are: text, JSON, Avro, Protobuf; their columns are made by json_values, avro and protobuf
    ddl       Spark's words for types
    fitting   columns of values, some of which may not fit
    registry  schemas from a registry

Needs pyarrow and numpy: ``pip install 'seglog[arrow]'``.
"""

from seglog_protocol.extras import missing

if (_error := missing("seglog.arrow", "arrow")) is not None:
    raise _error

from seglog.arrow.fitting import Misfit
from seglog.arrow.reading import ArrowReader, read_arrow
from seglog.arrow.schema import HEADERS, SCHEMA
from seglog.arrow.values import Values
from seglog.arrow.writing import WrittenRange, WrittenTable, write_arrow

__all__ = [
    "HEADERS",
    "SCHEMA",
    "ArrowReader",
    "Misfit",
    "Values",
    "WrittenRange",
    "WrittenTable",
    "read_arrow",
    "write_arrow",
]
