"""The version of a build, the classes of Kafka's messages for type checkers, and a wheel with compiled modules.

    python hatch_build.py

writes ``messages.pyi`` beside the table that it is made of, as each build and install does. Git does not know the file.

``HATCH_BUILD_HOOKS_ENABLE=true pip wheel .``: the modules that pyproject.toml names are compiled by mypyc
and stand in the wheel beside their sources, which Python then uses for tracebacks alone (docs/decisions/0018). They
are not written into the checkout: an editable install always runs the sources.
"""

import email
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from seglog_protocol.kafka.definitions import Definition, Field

NEXT_RELEASE = "0.4.0"
"""The release that the commits after the last one lead to."""

IS_RELEASE = False
"""True in the commit of a release alone."""

SHARED_LIBRARY = "seglog"
"""mypyc puts the code of all modules into one library, of which each module's own extension is a door."""


def version_of_build() -> str:
    """The version: of a release its number, of any other build also the commit, such as ``0.4.0.dev12+g7fbf4eb2``.

    12 commits have followed the last change of NEXT_RELEASE; ``.dirty`` ends the version where files of git's differ
    from their commit. Without git's history a source distribution says its version, and SEGLOG_COMMIT the commit.
    """
    root = Path(__file__).resolve().parent
    if IS_RELEASE:
        return NEXT_RELEASE
    if (root / ".git").exists() and shutil.which("git"):
        commit = _git(root, "describe", "--always", "--dirty=.dirty", "--exclude=*", "--abbrev=8")
        begun = _git(root, "log", "-1", "--format=%H", "-GNEXT_RELEASE = ", "--", "hatch_build.py")
        count = _git(root, "rev-list", "--count", f"{begun}..HEAD") if begun else "0"
        return f"{NEXT_RELEASE}.dev{count}+g{commit}" if commit else f"{NEXT_RELEASE}.dev0"
    if (root / "PKG-INFO").exists():
        return email.message_from_bytes((root / "PKG-INFO").read_bytes())["Version"]
    commit = os.environ.get("SEGLOG_COMMIT", "")[:8]
    return f"{NEXT_RELEASE}.dev0+g{commit}" if commit else f"{NEXT_RELEASE}.dev0"


def _git(root: Path, *command: str) -> str:
    """The output of git, empty where it fails, as in a checkout of another user."""
    ran = subprocess.run(["git", "-C", root, *command], capture_output=True, text=True, check=False)  # noqa: S603, S607
    return ran.stdout.strip()


class SeglogBuild(BuildHookInterface[Any]):
    """Writes the stub, and compiles ``modules``, paths of the configuration, where that is asked for."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Those of compiling: mypyc looks at the types of what the modules import, the broker's among them."""
        if not _is_compiled():
            return []
        project = self.metadata.core
        return [*self.config["compilers"], *project.dependencies, *project.optional_dependencies["broker"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write and compile, and have the results put into the wheel; an editable install is not compiled."""
        write_stub(Path(self.root))
        if version == "editable" or not _is_compiled():
            return
        self._folder = Path(tempfile.mkdtemp(prefix="seglog-compiled-"))
        built = compile_modules(Path(self.root), self.config["modules"], self._folder)
        build_data["force_include"].update({str(built / name): name for name in _files_in(built)})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel has by now."""
        if version != "editable" and _is_compiled():
            shutil.rmtree(self._folder)


def _is_compiled() -> bool:
    return os.environ.get("HATCH_BUILD_HOOKS_ENABLE", "") in {"1", "true"}


def compile_modules(root: Path, modules: list[str], folder: Path) -> Path:
    """Compile ``modules``, paths of the checkout ``root``; returns a folder with extensions as they stand in a wheel.

    Sources in C, objects and mypy's cache go below ``folder``. Raises SystemExit with mypy's errors. Each module
    becomes a file in C, and these are compiled side by side with -O1: one file with -O3 takes minutes, and is as fast.
    """
    from mypyc.build import mypycify  # noqa: PLC0415 - the hook alone needs them
    from setuptools import Distribution  # noqa: PLC0415 - as above
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415 - as above

    class SideBySide(build_ext):  # type: ignore[misc]
        """Compiles the files of one extension side by side, too: ``parallel`` does so with whole extensions."""

        def build_extensions(self) -> None:
            of = self.compiler.compile
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                self.compiler.compile = lambda files, **how: [x for (x,) in pool.map(lambda c: of([c], **how), files)]
                super().build_extensions()

    built = folder / "built"
    gc.disable()  # mypy's trees stay to the end: to look through millions of objects takes as long as to compile
    extensions = mypycify(
        [
            f"--config-file={root / 'pyproject.toml'}",
            f"--cache-dir={folder / 'mypy'}",
            "--follow-imports=silent",  # what they import may import what is not installed here, such as numpy
            *(str(root / module) for module in modules),
        ],
        target_dir=str(folder / "c"),
        group_name=SHARED_LIBRARY,
        debug_level="0",
        opt_level="1",
        multi_file=True,
    )
    gc.freeze()
    for extension in extensions:
        extension.extra_compile_args += ["-fvisibility=hidden"]  # a call from file to file is a plain one
    distribution = Distribution({"name": "seglog", "ext_modules": extensions, "cmdclass": {"build_ext": SideBySide}})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp, command.parallel = str(built), str(folder / "objects"), os.cpu_count()
    distribution.run_command("build_ext")
    return built


def _files_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


# --- Types of Kafka's messages ----------------------------------------------------------------------------------------

STUB_HEADER: Final = """\
# The classes of Kafka's messages, for type checkers and readers. Written by hatch_build.py.

from collections.abc import Sized

from seglog_protocol.kafka.structs import Message, Request, Response, Struct
"""


def write_stub(root: Path) -> None:
    """Write ``messages.pyi`` of the checkout ``root``, unless it is there as it should be."""
    path, text = root / "protocol" / "seglog_protocol" / "kafka" / "messages.pyi", render_stub(root)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def render_stub(root: Path) -> str:
    """The text of ``messages.pyi``, from the table of the checkout ``root``."""
    sys.path.insert(0, str(root / "protocol"))  # it needs nothing but Python
    from seglog_protocol.kafka.definitions import definition, message_names  # noqa: PLC0415 - it is not installed yet

    sys.path.pop(0)
    return STUB_HEADER + "".join(_class_text(definition(name)) for name in message_names())


def _class_text(message: "Definition") -> str:
    lines = [f"\nclass {message.struct.name}({BASES[message.kind]}):"]
    for struct in message.structs.values():
        lines += [f"    class {struct.name}(Struct):"]
        lines += [f"        {_annotation(message, field)}" for field in struct.fields] or ["        ..."]
        lines += [""]
    lines += [f"    {_annotation(message, field)}" for field in message.struct.fields]
    return "\n".join(lines if len(lines) > 1 else [f"{lines[0]} ..."]).rstrip() + "\n"


BASES: Final = {"request": "Request", "response": "Response", "data": "Message"}
TYPES: Final = {
    **dict.fromkeys(("int8", "int16", "uint16", "int32", "uint32", "int64"), "int"),
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "uuid": "bytes",
    "bytes": "bytes",
}


def _annotation(message: "Definition", field: "Field") -> str:
    element = field.type.removeprefix("[]")
    if element in message.structs:
        text = f"{message.struct.name}.{element}"
    elif element == "records":
        text = "memoryview" if message.kind == "request" else "Sized"
    else:
        text = TYPES[element]
    if field.is_array:
        text = f"list[{text}]"
    if field.nullable or field.is_optional_struct:
        text += " | None"
    return f"{field.name}: {text} = ..."


if __name__ == "__main__":
    write_stub(Path(__file__).resolve().parent)
