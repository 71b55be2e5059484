"""The page docs/EVENTS.md: each event of the daemon's log with its levels and facts, from the code, and its meaning.

``scripts.pages`` writes it. events.toml has the meaning and the table of each event; a test refuses one without.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parent.parent
BROKER: Final = REPOSITORY / "broker" / "seglog_broker"

WRITTEN_FROM_HERE: Final = "<!-- written from here on -->\n"
"""Ends what a file of docs/ has of a page."""

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_METHODS: Final = {**{level: level for level in LEVELS}, "exception": "error"}
_LOGGERS: Final = frozenset({"log", "_log"})
_NOT_FACTS: Final = frozenset({"exc_info"})
_ELSEWHERE: Final = ("testing",)
"""Packages that no daemon runs."""


class Event(NamedTuple):
    """What all lines of code that log it say together. ``facts`` is in the order of the code."""

    levels: tuple[str, ...]
    facts: tuple[str, ...]


def page() -> str:
    """The whole page, ending with a line feed."""
    events = events_of_code()
    text = (REPOSITORY / "docs" / "EVENTS.md").read_text(encoding="utf-8").partition(WRITTEN_FROM_HERE)[0]
    for heading, meanings in meanings_by_table().items():
        text += f"## {heading}\n\n| event | level | facts | meaning |\n|---|---|---|---|\n"
        text += "".join(row_of(name, events[name], meaning) for name, meaning in meanings.items()) + "\n"
    return text.rstrip("\n") + "\n"


def meanings_by_table() -> dict[str, dict[str, str]]:
    """The meaning of each event, by the heading of its table, in the order of the page."""
    return tomllib.loads(Path(__file__).with_name("events.toml").read_text(encoding="utf-8"))


def row_of(name: str, event: Event, meaning: str) -> str:
    """The row of an event, as a line."""
    facts = ", ".join(f"`{fact}`" for fact in event.facts)
    return f"| `{name}` | {', '.join(event.levels)} | {facts} | {meaning} |\n".replace("|  |", "| |")


# --- The code ---------------------------------------------------------------------------------------------------------


def events_of_code() -> dict[str, Event]:
    """Every event that the broker can log, from its sources."""
    found: dict[str, tuple[set[str], dict[str, None]]] = {}
    for path in sorted(BROKER.rglob("*.py")):
        if path.relative_to(BROKER).parts[0] in _ELSEWHERE:
            continue
        for name, level, facts in logged_in(ast.parse(path.read_text(encoding="utf-8"))):
            levels, known = found.setdefault(name, (set(), {}))
            levels.add(level)
            known.update(dict.fromkeys(facts))
    found["log_lines_lost"] = {"error"}, {"lines": None, "reason": None}  # written in place of lines, not by a logger
    return {
        name: Event(tuple(level for level in LEVELS if level in levels), tuple(facts))
        for name, (levels, facts) in found.items()
    }


def logged_in(module: ast.Module) -> Iterator[tuple[str, str, list[str]]]:
    """(event, level, facts) of each call that logs; a method that is chosen before, as in ``tell = log.info``, too."""
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name)
    }
    scopes = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in scopes:
        chosen, mappings = _chosen_methods(scope), _mappings(scope)
        for call in (node for node in _own_nodes(scope) if isinstance(node, ast.Call) and node.args):
            levels = _levels_in(call.func) or chosen.get(_name(call.func), [])
            first = call.args[0]
            name = first.value if isinstance(first, ast.Constant) else constants.get(_name(first))
            if isinstance(name, str):
                yield from ((name, level, list(_facts(call, mappings))) for level in levels)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own_nodes(node)


def _is_log_method(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _METHODS and _name(node.value) in _LOGGERS


def _levels_in(node: ast.AST) -> list[str]:
    """The levels of the methods that an expression chooses from: ``(log.info if ... else log.warning)``."""
    return [_METHODS[part.attr] for part in ast.walk(node) if isinstance(part, ast.Attribute) and _is_log_method(part)]


def _chosen_methods(scope: ast.AST) -> dict[str, list[str]]:
    """The levels of local names such as ``tell``."""
    return {
        _name(node.targets[0]): levels
        for node in _own_nodes(scope)
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call) and (levels := _levels_in(node.value))
    }


def _mappings(scope: ast.AST) -> dict[str, list[str]]:
    """The keys of local names such as ``facts``, and of those that are set later."""
    found: dict[str, list[str]] = {}
    for node in _own_nodes(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(node.value, ast.Dict) and isinstance(target, ast.Name):
                    found[target.id] = list(_keys(node.value))
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=True)
                    found |= {_name(name): list(_keys(value)) for name, value in pairs if isinstance(value, ast.Dict)}
                elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    found.setdefault(_name(target.value), []).append(str(target.slice.value))
    return found


def _facts(call: ast.Call, mappings: dict[str, list[str]]) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield from () if keyword.arg in _NOT_FACTS else (keyword.arg,)
        elif isinstance(keyword.value, ast.Name):
            yield from mappings.get(keyword.value.id, [])
        else:
            for part in ast.walk(keyword.value):
                yield from _keys(part) if isinstance(part, ast.Dict) else ()


def _keys(node: ast.Dict) -> Iterable[str]:
    return (str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def _name(node: ast.AST) -> str:
    """The last part of a dotted name, empty for what is none."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
