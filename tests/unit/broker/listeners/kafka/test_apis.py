"""What the heads of the handlers say of versions agrees with Kafka's definitions of the messages."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import Api
from seglog_broker.listeners.kafka.handlers import topics
from seglog_protocol.kafka import definitions
from seglog_protocol.kafka.definitions import Definition, Field
from tests.support import each_case

Head = Mapping[int, str]


def heads() -> Iterator[tuple[str, Head]]:
    """The name of each api, with what its versions changed, from the docstrings of all handlers."""
    folder = Path(topics.__file__).parent
    for path in (folder.parent / "apis.py", *sorted(folder.glob("*.py"))):  # a compiled module has no docstring
        head = ast.get_docstring(ast.parse(path.read_text())) or ""
        for found in re.finditer(r"(?m)^(\w+(?:, \w+)*)\n((?:  \d+ +.+\n)+)", f"{head}\n"):
            changes = {int(number): text for number, text in re.findall(r"(?m)^  (\d+) +(.+)$", found[2])}
            for name in found[1].split(", "):
                yield name, changes


HEADS: Final = dict(heads())


def fields_of(message: Definition) -> Iterator[Field]:
    yield from message.struct.fields
    for struct in message.structs.values():
        yield from struct.fields


def test_each_api_has_one_head() -> None:
    assert sorted(name for name, _ in heads()) == sorted(api.name for api in apis.APIS.values())


@each_case("api", apis.APIS.values(), ids=lambda api: api.name)
def test_a_head_names_each_version_that_changes_fields_or_encoding(api: Api) -> None:
    request, response = (definitions.definition(f"{api.name}{kind}") for kind in ("Request", "Response"))
    changed = {
        version
        for message in (request, response)
        for field in fields_of(message)
        for version in (field.versions.start, field.versions.stop)
        if version in api.versions and version > api.versions.start
    }
    head = HEADS[api.name]
    assert list(head) == sorted(head)
    assert changed <= set(head) <= set(api.versions)
    is_flexible = [version for version, text in head.items() if text.startswith("flexible")]
    assert is_flexible == [version for version in api.versions if version in request.flexible][:1]
