"""Counts the error codes that stand in responses, at any depth of their arrays."""

from collections import Counter
from functools import cache
from typing import Any, Final

from seglog_protocol.kafka.definitions import StructDefinition, definition
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Response
from seglog_protocol.steps import Steps

PARTS_AT_ONCE: Final = 1000
"""Parts of a response that are looked at before other tasks run."""


def count_errors(counts: Counter[str], response: Response) -> Steps[None]:
    """Count every error in a response by the name that Kafka has for its code, some parts in a step."""
    for path in paths_of(type(response).__name__):
        parts: list[Any] = [response]
        for name in path:
            outer, parts = parts, []
            for number, part in enumerate(outer, start=1):
                parts += getattr(part, name) or ()
                if number % PARTS_AT_ONCE == 0:
                    yield
        for number, part in enumerate(parts, start=1):
            if part.error_code:
                counts[ErrorCode(part.error_code).name] += 1
            if number % PARTS_AT_ONCE == 0:
                yield


@cache
def paths_of(response: str) -> tuple[tuple[str, ...], ...]:
    """The arrays, one in the other, whose structs have an error code, of a response by name; () is the response."""
    described = definition(response)
    paths: list[tuple[str, ...]] = []

    def visit(struct: StructDefinition, path: tuple[str, ...]) -> None:
        for field in struct.fields:
            if field.name == "error_code":
                paths.append(path)
            elif field.is_struct and field.is_array:
                visit(described.structs[field.type.removeprefix("[]")], (*path, field.name))

    visit(described.struct, ())
    return tuple(paths)
