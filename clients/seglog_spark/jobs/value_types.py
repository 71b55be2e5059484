"""What the values of an archive are: by its options when it is begun; from then on they keep their columns."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from seglog.arrow.reading import sample
from seglog.arrow.values import Values
from seglog.cli.arguments import Options
from seglog.cli.exits import InputError
from seglog.client import Client
from seglog_spark.jobs.common import check_kept

BYTES: Final = Values("bytes")
INFER: Final = "infer"
_FILES: Final = (".avsc", ".proto", ".desc", ".ddl")


@contextmanager
def _as_input_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, ImportError, RecursionError) as error:
        raise InputError(str(error)) from None


@_as_input_errors()
def asked(options: Options) -> Values:
    """What the options say, without a schema where that is found out. Raises InputError and OSError."""
    text = options.schema
    schema = None if text is None or text == INFER else Path(text) if text.endswith(_FILES) else text
    return Values(options.value or "bytes", schema, options.registry, options.message)


@_as_input_errors()
def begun(values: Values, schema: str | None, client: Client, topic: str, say: Callable[[str], None]) -> Values:
    """The values of a new archive, whose schema is shown. Raises InputError and RegistryError."""
    if schema == INFER:
        values = values.inferred(sample(client, topic))
    values = values.for_topic(topic)
    kind, _ = values.decoder()
    if values != BYTES:
        say(f"values are {values.kind}: {values.schema if values.kind == 'json' and values.schema else kind}")
    return values


@_as_input_errors()
def kept(values: Values, settings: Mapping[str, Any], topic: str, place: str) -> Values:
    """The values of an archive that was begun. Raises InputError where they have other columns now, RegistryError."""
    before = Values(**settings["values"]) if "values" in settings else BYTES
    check_kept(place, "--value", before.kind, values.kind)
    if values.kind == "json" and values.schema is None:
        return before
    values = replace(values, registry=values.registry or before.registry, message=values.message or before.message)
    values = values.for_topic(topic)
    if (now := values.decoder()[0]) == (old := before.decoder()[0]):
        return values
    columns = ({*kind} if pa.types.is_struct(kind) else {pa.field(str(kind), kind)} for kind in (now, old))
    differing = ", ".join(sorted({field.name for field in set.symmetric_difference(*columns)})) or "in another order"
    raise InputError(
        f"{place} keeps the columns that it was begun with, and the schema of values has others now ({differing}): "
        "name another place for an archive with these, or go on with the old ones by --schema TEXT, where TEXT is "
        f"settings.values.schema in {place}/_manifest.json"
    )
