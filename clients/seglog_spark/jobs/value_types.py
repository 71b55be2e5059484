"""What the values of an archive are: by its options when it is begun, by its manifest from then on."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from seglog.arrow.reading import sample
from seglog.arrow.values import Values
from seglog.cli.arguments import Options
from seglog.cli.exits import InputError
from seglog.client import Client
from seglog_spark.jobs.common import check_kept

INFER: Final = "infer"
_FILES: Final = (".avsc", ".proto", ".desc", ".ddl")


def begun(options: Options, client: Client, say: Callable[[str], None]) -> dict[str, Any]:
    """The setting of a new archive, none for bytes; shows the schema. Raises InputError, RegistryError and OSError."""
    try:
        values = _asked(options)
        if values is None:
            return {}
        if options.schema == INFER:
            values = values.inferred(sample(client, options.topic))
        values = values.for_topic(options.topic)
        kind, _ = values.decoder()
    except (ValueError, ImportError, RecursionError) as error:
        raise InputError(str(error)) from None
    say(f"values are {values.kind}: {values.schema if values.kind == 'json' and values.schema else kind}")
    return {"values": msgspec.to_builtins(values)}


def kept(options: Options, settings: Mapping[str, Any], place: str) -> Values | None:
    """The values of an archive that was begun. Raises InputError when the options say others, and OSError."""
    try:
        asked = _asked(options)
        found = Values(**settings["values"]) if "values" in settings else None
    except (ValueError, ImportError, RecursionError) as error:
        raise InputError(str(error)) from None
    check_kept(place, "--value", found.kind if found else "bytes", asked.kind if asked else "bytes")
    if found is None or asked is None:
        return None
    check_kept(place, "--schema", found.schema, asked.schema or found.schema)
    check_kept(place, "--message", found.message, asked.message or found.message)
    return replace(found, registry=asked.registry or found.registry)


def _asked(options: Options) -> Values | None:
    """What the options say, without a schema where that is found out. Raises ValueError and OSError."""
    text, schema = options.schema, None
    if text is not None and text != INFER:
        schema = Path(text) if text.endswith(_FILES) else text
    if options.value in {None, "bytes"}:
        if text or options.registry or options.message:
            raise ValueError("bytes have no schema: say with --value what the values are")
        return None
    return Values(options.value, schema, options.registry, options.message)
