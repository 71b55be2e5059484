"""The size of the house: numbers that a script can count, held to the limits in house.toml.

    python scripts/house.py            the table; exit code 1 if a number is above its limit, or below one with a minus
    python scripts/house.py --lower    the same, and each limit becomes the number of today where that is better
    python scripts/house.py --all      counts tokens and the cases that pytest collects as well: half a minute

A limit goes down with each step that takes something away. A change that needs more lines says so by raising it.
"""

import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
LIMITS: Final = Path(__file__).with_name("house.toml")

PRODUCT: Final = ("broker", "protocol", "clients")
SMALL: Final = 60
"""Lines below which a module with one importer could stand in that."""
COLLABORATORS: Final = 9
LAYERS: Final = ("storage", "partitions", "engine", "coordinators", "api", "listeners")
"""Packages of the broker, from below: an arrow that runs up imports a later one."""

_BEGINNINGS: Final = ("Whether", "What", "As", "See")
_KINDS_OF_GROUP: Final = {"ClassicGroup", "ConsumerGroup"}
_NOT_TOKENS: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def main(arguments: list[str]) -> int:
    """Print the table; the exit code."""
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    found = measured() | (measured_slowly() if "--all" in arguments else {})
    if "--lower" in arguments:
        limits |= {
            name: number for name, number in found.items() if not _is_over(name, number, limits.get(name, number))
        }
        LIMITS.write_text("".join(f'"{name}" = {number}\n' for name, number in limits.items()), encoding="utf-8")
    over = [name for name, number in found.items() if _is_over(name, number, limits[name])]
    for name, number in found.items():
        print(f"{name:<49} {number:>9,} of {limits[name]:>9,}{'  OVER ITS LIMIT' if name in over else ''}")
    return bool(over)


def measured() -> dict[str, int]:
    """Each number by its name, from the files that git knows."""
    product, tests = _sources(*PRODUCT), _sources("tests")
    trees = {path: _tree(path) for path in product if path.suffix == ".py"}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    docstrings = [text for text in map(ast.get_docstring, functions) if text]
    return {
        "product lines": sum(map(_lines, product)),
        "product files": len(product),
        "product lines of other text": sum(_lines(path) for path in _known(*PRODUCT) if path not in product),
        "lines of scripts": sum(map(_lines, [*_known("scripts"), REPOSITORY / "hatch_build.py"])),
        f"modules under {SMALL} lines with one importer": _small_modules(trees),
        "arrows that run up": sum(1 for path, tree in trees.items() for _ in _arrows_up(path, tree)),
        f"classes with {COLLABORATORS} or more collaborators": sum(map(_is_crowded, functions)),
        "isinstance on kinds of group": sum(_asks_kind(node) for tree in trees.values() for node in ast.walk(tree)),
        "docstrings that begin with Whether, What, As, See": sum(text.split()[0] in _BEGINNINGS for text in docstrings),
        "docstrings in a thousand, at least": 1000 * len(docstrings) // len(functions),
        "test lines": sum(map(_lines, tests)),
        "lines of benchmarks": sum(map(_lines, _sources("benchmarks"))),
        "words of documents": sum(len(path.read_text("utf-8").split()) for path in _known("*.md")),
        "lines of README": _lines(REPOSITORY / "README.md"),
        "lines of ARCHITECTURE": _lines(REPOSITORY / "ARCHITECTURE.md"),
        "lines of CHANGELOG": _lines(REPOSITORY / "CHANGELOG.md"),
    }


def measured_slowly() -> dict[str, int]:
    """Tokens, and the cases that pytest collects, of every lane."""
    return {
        "product tokens": sum(map(_tokens, _sources(*PRODUCT))),
        "test tokens": sum(map(_tokens, _sources("tests"))),
        "test cases": _cases(),
    }


def _cases() -> int:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return sum(int(line.rpartition(": ")[2]) for line in done.stdout.splitlines() if re.search(r"\.py: \d+$", line))


def _is_over(name: str, number: int, limit: int) -> bool:
    return number < limit if name.endswith("at least") else number > limit


@cache
def _known(*where: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *where],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.exists()]


def _sources(*where: str) -> list[Path]:
    return [path for path in _known(*where) if path.suffix in {".py", ".pyi"}]


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


@cache
def _tokens(path: Path) -> int:
    with path.open("rb") as file:
        return sum(token.type not in _NOT_TOKENS for token in tokenize.tokenize(file.readline))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts[1:]).removesuffix(".__init__")


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _small_modules(trees: dict[Path, ast.Module]) -> int:
    importers = Counter(name for tree in trees.values() for name in set(_imported(tree)))
    modules = (path for path in trees if path.name not in {"__init__.py", "__main__.py"})
    return sum(_lines(path) < SMALL and importers[_module(path)] == 1 for path in modules)


def _arrows_up(path: Path, tree: ast.Module) -> Iterator[str]:
    layer = _layer(_module(path))
    if layer is not None:
        found = {name.rpartition(".")[0] or name for name in _imported(tree)}
        yield from (name for name in found if (above := _layer(name)) is not None and above > layer)


def _layer(module: str) -> int | None:
    parts = module.split(".")
    is_layered = parts[0] == "seglog_broker" and len(parts) > 2 and parts[1] in LAYERS
    return LAYERS.index(parts[1]) if is_layered else None


def _is_crowded(node: ast.AST) -> bool:
    inits = [
        each for each in getattr(node, "body", ()) if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]
    is_class = isinstance(node, ast.ClassDef)
    return is_class and any(len(init.args.args) + len(init.args.kwonlyargs) > COLLABORATORS for init in inits)


def _asks_kind(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"):
        return False
    return bool(_KINDS_OF_GROUP & {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)})


_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
