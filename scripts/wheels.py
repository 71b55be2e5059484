"""Builds the wheels of a release into dist/: the pure one, and a compiled one for each released Python on this machine.

    python scripts/wheels.py
    python scripts/wheels.py --here

A Python is on the machine where ``python3.X`` is on PATH. Each wheel is built by the pip of an environment of its own,
below build/wheels, and what a build needs comes in the versions of constraints.txt. What could not be built is named
with the reason; the exit code is 1 only where nothing could be built.

The tag of a compiled wheel names the machine that built it (linux_x86_64): it is for machines like this one. Those for
any Linux (manylinux) are made by the workflow `release`.

``--here`` builds the compiled one for the Python that runs this, once for each state of the sources: PYTHONPATH finds
its packages in build/compiled/now/packages. Where it cannot be built there are none, and the exit code is 1.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

RELEASED: Final = ("3.11", "3.12", "3.13", "3.14")
"""The Pythons for which there is a wheel with compiled modules."""


BUILDS_KEPT: Final = 3
"""Those of other sources may come again, with the branch that has them."""


class NotBuiltError(Exception):
    """A wheel could not be built; says why."""


def main() -> int:
    """Build what can be built, and print a line for each wheel; returns the exit code."""
    for old in (ROOT / "dist").glob("seglog-*.whl"):
        old.unlink()
    told = [told_of("pure", sys.executable, compiled=False)]
    told += [told_of(version, f"python{version}", compiled=True) for version in RELEASED]
    print(*told, sep="\n")
    return 0 if any((ROOT / "dist").glob("seglog-*.whl")) else 1


def build_here(root: Path) -> int:
    """Have ``build/compiled/now`` lead to the compiled packages of ``root``, or to nothing; returns the exit code.

    Builds stand side by side: a broker that runs from one loads modules from it later, too.
    """
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folder, hook = root / "build" / "compiled", wheel["hooks"]["custom"]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("another build is under way: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / digest(root, wheel["packages"])[:16]
        reason = "" if built.is_dir() else _built(root, built, hook)
        now = folder / "now"
        now.unlink(missing_ok=True)
        if reason:
            print(f"nothing is compiled, so seglog runs from its sources, at half the speed: {reason}", flush=True)
            return 1
        now.symlink_to(built.name)
        built.touch()
        for old in sorted(folder.glob("?" * 16), key=lambda path: path.stat().st_mtime)[:-BUILDS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return 0


def _built(root: Path, folder: Path, hook: dict[str, list[str]]) -> str:
    """Build the wheel and its packages into ``folder``, which is there when all is done; else the reason."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
    header = sysconfig.get_path("include") + "/Python.h"
    if shutil.which(compiler.split()[0]) is None:
        return f"no C compiler named {compiler}: install gcc"
    if not Path(header).is_file():
        return f"{header} is missing: install python3-dev"
    print(f"compiling {len(hook['modules'])} modules, once for these sources: a minute, or some", flush=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    with tempfile.TemporaryDirectory(dir=folder.parent) as part:
        steps = (
            ["install", "hatchling", *hook["compilers"]],
            ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", f"{part}/built", str(root)],
        )
        settings = {
            "HATCH_BUILD_HOOKS_ENABLE": "true",
            "PIP_CONSTRAINT": str(root / "constraints.txt"),
            "TMPDIR": part,  # whatever an interrupt leaves there goes with it
        }
        if any(subprocess.run([*pip, *each], env=os.environ | settings, check=False).returncode for each in steps):
            return "pip failed, its output is above"
        with zipfile.ZipFile(next(Path(part, "built").glob("*.whl"))) as wheel:
            # Without its metadata: else pip takes seglog for installed, wherever it is to install it.
            names = [name for name in wheel.namelist() if ".dist-info/" not in name]
            wheel.extractall(Path(part, "built", "packages"), names)
        Path(part, "built").rename(folder)
    return ""


def digest(root: Path, packages: list[str]) -> str:
    """A hash of all that decides what is built: sources and versions, this Python, its C compiler and flags."""
    flags = [os.environ.get("CC"), os.environ.get("CFLAGS"), *sysconfig.get_config_vars("CC", "CFLAGS")]
    found = hashlib.sha256(repr((sys.version, flags)).encode())
    files = [path for name in packages for path in sorted((root / name).rglob("*.*"))]
    for path in (root / "pyproject.toml", root / "constraints.txt", root / "hatch_build.py", *files):
        if path.suffix not in {".pyc", ".pyi"}:  # messages.pyi is made of the others
            found.update(repr((str(path.relative_to(root)), path.read_bytes())).encode())
    return found.hexdigest()


def told_of(name: str, python: str, *, compiled: bool) -> str:
    """Build the wheel ``name``, and return what is said of it."""
    try:
        check_runs(python)
        return f"{name}: {build(ROOT / 'build' / 'wheels' / name, python, compiled=compiled)}"
    except NotBuiltError as reason:
        return f"{name}: not built, {reason}"


def check_runs(python: str) -> None:
    """Raise NotBuiltError if ``python`` is not there, or is there and does not run, as a version manager's may."""
    if shutil.which(python) is None:
        raise NotBuiltError(f"there is no {python} on PATH")
    tried = subprocess.run([python, "-c", ""], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise NotBuiltError(f"{python} does not run: {(tried.stderr.strip() or 'it says nothing').splitlines()[0]}")


def build(environment: Path, python: str, *, compiled: bool) -> str:
    """Build into dist/ with a new environment of ``python``; returns the wheel's name. The output of pip is shown."""
    constraints = str(ROOT / "constraints.txt")
    settings = {
        "HATCH_BUILD_HOOKS_ENABLE": str(compiled).lower(),
        "PIP_CONSTRAINT": constraints,
        "PIP_BUILD_CONSTRAINT": constraints,  # what newer versions of pip look at for the build itself
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    before = set((ROOT / "dist").glob("*.whl"))
    for command in (
        [python, "-m", "venv", "--clear", str(environment)],
        [str(environment / "bin" / "python"), "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", "."],
    ):
        done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=False)
        if done.returncode != 0:
            raise NotBuiltError(f"`{' '.join(command)}` ended with {done.returncode}, its output is above")
    (built,) = set((ROOT / "dist").glob("*.whl")) - before
    return str(built.relative_to(ROOT))


if __name__ == "__main__":
    try:
        sys.exit(build_here(ROOT) if sys.argv[1:] == ["--here"] else main())
    except KeyboardInterrupt:
        sys.exit(130)
