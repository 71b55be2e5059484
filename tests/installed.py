"""seglog as it is installed from its wheel, in an environment that has nothing but what the wheel asks for."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, PackagePath, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support import REPOSITORY


def build_wheel(folder: Path, *, compiled: bool = False) -> Path:
    """Built from this checkout into ``folder``, with the build tools of this environment."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPOSITORY)),
        ],
        env=os.environ | {"HATCH_BUILD_HOOKS_ENABLE": str(compiled).lower()},
        check=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def environment_with(wheel: Path, folder: Path) -> Path:
    """The Python of a virtual environment in ``folder`` with the wheel, and behind it all that this environment has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install(wheel, python)
    (packages,) = folder.glob("lib/python*/site-packages")
    here = "\n".join(path for path in sys.path if path.endswith("site-packages"))
    (packages / "behind.pth").write_text(here, encoding="utf-8")
    return python


def install(wheel: Path, python: Path) -> None:
    """Install the wheel alone into the environment of ``python``, without a network."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--disable-pip-version-check", "--no-index", "--no-deps", str(wheel)),
        ],
        check=True,
    )


class Installed:
    """A virtual environment in ``folder`` with the wheel and its dependencies, those of extras left out.

    Nothing comes from a network: the dependencies are links to those of the environment that runs the tests.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        install(wheel, self.bin / "python")
        (self.packages,) = folder.glob("lib/python*/site-packages")
        (metadata,) = self.packages.glob("seglog-*.dist-info")
        self.seglog = PathDistribution(metadata)
        self.dependencies = _with_all_they_need(_needed_by(self.seglog))
        for found in self.dependencies.values():
            for name in {path.parts[0] for path in found.files or () if path.parts[0] != ".."}:
                _link(Path(str(found.locate_file(name))), self.packages / name)

    def sizes(self) -> dict[str, int]:
        """Bytes of each distribution's files, those that Python compiled at the installation included."""
        return {
            name: sum(path.stat().st_size for path in map(_place(found), found.files or ()) if path.exists())
            for name, found in {"seglog": self.seglog, **self.dependencies}.items()
        }


def _place(found: Distribution) -> Callable[[PackagePath], Path]:
    return lambda path: Path(str(found.locate_file(path)))


def _link(there: Path, here: Path) -> None:
    """A link to a file or a folder; a folder that several distributions share has a link for each thing in it."""
    if here.is_dir() and there.is_dir():
        for name in there.iterdir():
            _link(name, here / name.name)
    elif there.exists() and not here.exists():
        here.symlink_to(there)


def _needed_by(found: Distribution) -> set[str]:
    """The distributions it needs here without an extra, by their names."""
    requirements = map(Requirement, found.requires or ())
    return {needed.name for needed in requirements if needed.marker is None or needed.marker.evaluate({"extra": ""})}


def _with_all_they_need(names: set[str]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    while names:
        name = names.pop()
        found[name] = distribution(name)
        names |= _needed_by(found[name]) - found.keys()
    return found
