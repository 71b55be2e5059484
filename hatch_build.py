"""The version of a build, and the build of a wheel with compiled modules.

``HATCH_BUILD_HOOKS_ENABLE=true pip wheel .``: the modules that pyproject.toml names are compiled by mypyc
and stand in the wheel beside their sources, which Python then uses for tracebacks alone (docs/decisions/0018). Nothing
is written into the checkout: an editable install always runs the sources.
"""

import email
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

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


class CompiledModules(BuildHookInterface[Any]):
    """Compiles ``modules``, paths of the configuration, for the Python and the machine that build the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the install is to be editable, and have the results put into the wheel."""
        if version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="seglog-compiled-"))
        built = compile_modules(Path(self.root), self.config["modules"], self._folder)
        build_data["force_include"].update({str(built / name): name for name in _files_in(built)})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel has by now."""
        if version != "editable":
            shutil.rmtree(self._folder)


def compile_modules(root: Path, modules: list[str], folder: Path) -> Path:
    """Compile ``modules``, paths of the checkout ``root``; returns a folder with extensions as they stand in a wheel.

    Sources in C, objects and mypy's cache go below ``folder``. Raises SystemExit with mypy's errors.
    """
    from mypyc.build import mypycify  # noqa: PLC0415 - the hook alone needs them
    from setuptools import Distribution  # noqa: PLC0415 - as above

    built = folder / "built"
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
    )
    distribution = Distribution({"name": "seglog", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(built), str(folder / "objects")
    distribution.run_command("build_ext")
    return built


def _files_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
