"""Values in Protobuf as columns: of one message of a ``.proto`` file, or of a set of descriptors.

Each value is checked by Google's parser, since the one that makes columns takes some that are cut or damaged; unknown
fields are dropped. A field with presence (``optional``, messages, members of a ``oneof``) is null where it is not set,
others have their default. An enum is its name, ``uint32`` is a bigint, ``uint64`` a decimal(20,0); what the message has
inside of itself is bytes.
"""

import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import ptars
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.wrappers_pb2 import UInt64Value

from seglog.arrow.fitting import Format, Unfit, text_of
from seglog.arrow.registry import FoundSchema, Registry, split_frame

_MAIN: Final = "values.proto"
_CONFIG: Final = ptars.PtarsConfig(
    timestamp_unit="us", duration_unit="us", time_unit="us", enum_repr="string", list_value_name="element"
)


class ProtobufValues(Format):
    """Protobuf as the fields of a message; ``schema`` is a ``.proto`` text, or what ``described`` gives.

    ``message`` is its full name; None: the first one. Raises ValueError for a schema or a name that is none.
    """

    def __init__(self, schema: str, message: str | None = None, registry: Registry | None = None) -> None:
        self._registry = registry
        self._file = _pooled(_compiled(schema, {}) if "{" in schema else b64decode(schema + "=="))
        top = self._file.message_types_by_name
        try:
            found = self._file.pool.FindMessageTypeByName(message) if message else next(iter(top.values()))
        except (KeyError, StopIteration):
            there = ", ".join(each.full_name for each in top.values())
            raise ValueError(f"the Protobuf schema has no message {message or ''}; it has {there or 'none'}") from None
        self._name: Final = found.full_name
        self._parse = GetMessageClass(found).FromString
        self._columns = ptars.HandlerPool([found.file], _CONFIG).get_for_message(found)
        self.type = _nullable(pa.struct(list(self._columns.schema())))
        self._own_frames = self._frames(self._file)

    def check(self, value: bytes) -> bytes:
        """The message. Raises Unfit, and RegistryError where the registry cannot be asked."""
        if value[:1] == b"\0":  # which no message begins with
            number, value = split_frame(value)
            frames = self._own_frames
            if self._registry is not None:
                frames = self._registry.writer(
                    number,
                    "PROTOBUF",
                    lambda found: self._frames(_pooled(_compiled(found.text, found.references))),
                )
            frame = next(filter(value.startswith, frames), None)
            if frame is None:
                raise Unfit(f"not of the Protobuf message {self._name}, by the number before it")
            value = value[len(frame) :]
        elif self._registry is not None:
            split_frame(value)
        try:
            self._parse(value)
        except DecodeError as error:
            raise Unfit(f"no Protobuf message {self._name} ({error})") from None
        return value

    def _frames(self, file: Any) -> list[bytes]:
        """The numbers that Confluent's serializers write before the message: its place in ``file``; none without it.

        They are how many, and the place on each level, zigzag; the first message has a short form, too.
        """
        path: list[int] = []
        name, beside = self._name.removeprefix(f"{file.package}."), list(file.message_types_by_name.values())
        for part in name.split("."):
            names = [each.name for each in beside]
            if part not in names:
                return []
            path.append(names.index(part))
            beside = beside[path[-1]].nested_types
        whole = [UInt64Value(value=2 * number).SerializeToString()[1:] or b"\0" for number in (len(path), *path)]
        return [b"".join(whole), *([b"\0"] if path == [0] else [])]

    def convert(self, values: Sequence[bytes | None]) -> pa.Array:
        """The columns. Raises Unfit."""
        try:
            read = self._columns.list_to_record_batch([value or b"" for value in values])
            mask = pa.array([value is None for value in values])
            rows = pa.StructArray.from_arrays(read.columns, fields=list(read.schema), mask=mask)
            return rows.cast(self.type)
        except (ValueError, OverflowError) as error:
            raise Unfit(f"a Protobuf message that Arrow cannot hold ({error})") from None


def described(path: Path) -> str:
    """The schema in a file as text that needs no other file: a ``.proto``, with its imports, or a set of descriptors.

    Raises ValueError for what is neither, and OSError.
    """
    content = path.read_bytes()
    if path.suffix == ".proto":
        content = _compiled(text_of(content), {}, path.parent)
    _pooled(content)
    return b64encode(content).decode()


def registered(found: FoundSchema) -> str:
    """A schema of a registry as text that needs no other. Raises ValueError."""
    return b64encode(_compiled(found.text, found.references)).decode()


def _compiled(schema: str, imports: Mapping[str, str], folder: Path | None = None) -> bytes:
    """A set of descriptors, the last of which is that of ``schema``."""
    with TemporaryDirectory() as scratch:
        for name, text in {**imports, _MAIN: schema}.items():
            if "\0" in name or not (place := Path(scratch, name).resolve()).is_relative_to(Path(scratch).resolve()):
                raise ValueError(f"a Protobuf schema imports {name!r}, which is no name of a file")
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            except (FileExistsError, IsADirectoryError, NotADirectoryError):
                raise ValueError(f"a Protobuf schema imports {name!r}, a file and a folder at once") from None
        out = Path(scratch, "descriptors")
        folders = [scratch, *([str(folder)] if folder else [])]
        command = [*(f"-I{each}" for each in folders), "--include_imports", f"--descriptor_set_out={out}", _MAIN]
        done = subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *command], capture_output=True, check=False)  # noqa: S603
        if done.returncode:
            said = done.stderr.decode(errors="replace").splitlines()
            reasons = [line.removeprefix(f"{scratch}/") for line in said if line.startswith((scratch, _MAIN))]
            raise ValueError(f"this is no Protobuf schema: {'; '.join(reasons) or said}")
        return out.read_bytes()


def _pooled(descriptors: bytes) -> Any:
    """The last file of a set of descriptors. Raises ValueError."""
    pool = DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(descriptors).file
        for file in files:
            pool.Add(file)
        return pool.FindFileByName(files[-1].name)
    except (DecodeError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"this is no set of Protobuf descriptors with all that it imports: {error}") from None


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type with fields that may be null, and numbers with signs, as all table formats have them."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}.get(kind, kind)
