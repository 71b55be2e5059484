"""Regular expressions by which members subscribe to topics: the syntax of RE2, matched in bounded time.

Kafka's brokers use RE2, whose time is linear in what it reads. Python's ``re`` has more syntax, and expressions for
which it takes for ever. So an expression is read here, which refuses what RE2 does not have, and becomes a finite
automaton, whose states are made when a topic's name leads to them. Only the characters that names of topics may have
count; an expression has to match a whole name.
"""

import string
import unicodedata
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")

_REPEAT_MAX: Final = 1_000
"""RE2's own limit."""
_DEPTH_MAX: Final = 100
_SIZE_MAX: Final = 20_000
"""Steps of the expression with repetitions written out."""
_WORK_MAX: Final = 2_000_000
"""Steps looked at for all topics together, which takes about a second."""

_PERL_CLASSES: Final = {"d": frozenset(string.digits), "w": _WORD, "s": frozenset[str]()}
_POSIX_CLASSES: Final[dict[str, frozenset[str]]] = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": NAME_CHARACTERS,
    "blank": frozenset(),
    "cntrl": frozenset(),
    "digit": frozenset(string.digits),
    "graph": NAME_CHARACTERS,
    "lower": frozenset(string.ascii_lowercase),
    "print": NAME_CHARACTERS,
    "punct": frozenset("._-"),
    "space": frozenset(),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROLS: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_ASSERTIONS: Final = {"A": "begin", "z": "end", "b": "boundary", "B": "no boundary"}
_NOT_RE2: Final = {
    "?=": "lookahead",
    "?!": "lookahead",
    "?<=": "lookbehind",
    "?<!": "lookbehind",
    "?>": "atomic groups",
    "?(": "conditions",
    "?#": "comments",
    "?P=": "backreferences",
}


class PatternError(ValueError):
    """Why an expression is not taken, as the end of a sentence."""


class _Set(NamedTuple):
    characters: frozenset[str]


class _Assertion(NamedTuple):
    kind: str


class _Sequence(NamedTuple):
    items: "tuple[_Node, ...]"


class _Choice(NamedTuple):
    items: "tuple[_Node, ...]"


class _Repeat(NamedTuple):
    item: "_Node"
    least: int
    most: int | None


_Node: TypeAlias = _Set | _Assertion | _Sequence | _Choice | _Repeat


# --- Reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._any_case = False
        self._names: set[str] = set()

    def read(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("it has a ) without its (")
        return node

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _next(self, missing: str) -> str:
        if self._at >= len(self._text):
            raise PatternError(missing)
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str, missing: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise PatternError(missing)
        taken = self._text[self._at : found]
        self._at = found + len(end)
        return taken

    def _choice(self) -> _Node:
        any_case = self._any_case
        items = [self._sequence()]
        while self._take("|"):
            items.append(self._sequence())
        self._any_case = any_case  # flags hold up to the end of their group
        return items[0] if len(items) == 1 else _Choice(tuple(items))

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            if self._take("\\Q"):
                quoted, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(self._at + len(quoted) + 2, len(self._text))
                items += [self._single(character) for character in quoted]
            elif not self._take("\\E"):
                item = self._item()
                if item is not None:
                    items.append(self._repeated(item))
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _item(self) -> _Node | None:
        """One that may be repeated; None for flags."""
        character = self._next("")
        match character:
            case "(":
                return self._group()
            case "[":
                return _Set(self._bracketed())
            case ".":
                return _Set(NAME_CHARACTERS)
            case "^":
                return _Assertion("begin")
            case "$":
                return _Assertion("end")
            case "*" | "+" | "?":
                raise PatternError(f"its {character} has nothing to repeat")
            case "\\":
                if self._at < len(self._text) and self._text[self._at] in _ASSERTIONS:
                    return _Assertion(_ASSERTIONS[self._next("")])
                return _Set(self._escaped())
        return self._single(character)

    def _group(self) -> _Node | None:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise PatternError(f"its groups are nested more than {_DEPTH_MAX} deep")
        any_case = self._any_case
        if self._peek("?"):
            for start, name in _NOT_RE2.items():
                if self._peek(start):
                    raise PatternError(f"RE2 has no {name}: ({start}")
            if self._take("?P<") or self._take("?<"):
                name = self._until(">", "the name of a group has no end")
                if not name.isidentifier():
                    raise PatternError(f"{name!r} is not a name of a group")
                if name in self._names:
                    raise PatternError(f"two groups have the name {name!r}")
                self._names.add(name)
            elif not self._flags():
                self._depth -= 1
                return None
        node = self._choice()
        self._any_case = any_case
        if not self._take(")"):
            raise PatternError("it has a ( without its )")
        self._depth -= 1
        return node

    def _flags(self) -> bool:
        """Read ``?flags:`` or ``?flags)``; whether a group follows."""
        self._next("")
        on = True
        while True:
            flag = self._next("it has a ( without its )")
            if flag == "-" and on:
                on = False
            elif flag == "i":
                self._any_case = on
            elif flag in "):":
                return flag == ":"
            elif flag not in "msU":  # which make no difference for whole names without line ends
                raise PatternError(f"RE2 has no flag {flag!r}")

    def _repeated(self, item: _Node) -> _Node:
        node, repeated = item, False
        while True:
            start = self._at
            bounds = self._bounds()
            if bounds is None:
                return node
            if repeated:
                raise PatternError(f"RE2 has no repetition of a repetition: {self._text[start : self._at]}")
            least, most = bounds
            node, repeated = _Repeat(item, least, most), True
            self._take("?")  # lazy: whether a whole name matches does not depend on it

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        end = self._text.find("}", self._at)
        if not self._peek("{") or end < 0:
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            return None  # a { for itself
        self._at = end + 1
        low = int(least[:5])
        high = low if not comma else int(most[:5]) if most else None
        if low > _REPEAT_MAX or (high is not None and not low <= high <= _REPEAT_MAX):
            raise PatternError(f"it repeats {{{least}{comma}{most}}}, and RE2 up to {_REPEAT_MAX} times")
        return low, high

    def _single(self, character: str) -> _Set:
        return _Set(self._cased(frozenset(character)))

    def _cased(self, characters: frozenset[str]) -> frozenset[str]:
        if self._any_case:
            characters |= {other for each in characters for other in (each.lower(), each.upper())}
        return characters & NAME_CHARACTERS

    def _escaped(self) -> frozenset[str]:
        """A class of characters, or one that is no letter or digit, or is named by its number."""
        named = self._named_class()
        return self._cased(frozenset(self._literal()) if named is None else named)

    def _named_class(self) -> frozenset[str] | None:
        """A class after a backslash, if there is one."""
        kind = self._text[self._at : self._at + 1]
        if kind.lower() in _PERL_CLASSES:
            self._at += 1
            characters = _PERL_CLASSES[kind.lower()]
            return characters if kind.islower() else NAME_CHARACTERS - characters
        if kind not in {"p", "P"}:
            return None
        self._at += 1
        name = self._next("its \\p has no name")
        if name == "{":
            name = self._until("}", "its \\p{ has no }")
        negated = name.startswith("^") != (kind == "P")
        characters = _unicode_class(name.removeprefix("^"))
        return NAME_CHARACTERS - characters if negated else characters

    def _literal(self) -> str:
        """The character that is written after a backslash."""
        character = self._next("it ends with a backslash")
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = self._until("}", "its \\x{ has no }") if self._take("{") else self._next_two()
            if not digits or len(digits) > 6 or not all(digit in string.hexdigits for digit in digits):
                raise PatternError(f"\\x{digits} is not a character")
            return chr(min(int(digits, 16), 0x10FFFF))
        octal = character
        while len(octal) < 3 and self._at < len(self._text) and self._text[self._at] in string.octdigits:
            octal += self._next("")
        if character == "0" or (len(octal) > 1 and all(digit in string.octdigits for digit in octal)):
            return chr(int(octal, 8))
        self._at -= len(octal) - 1
        if character.isdigit():
            raise PatternError(f"RE2 has no backreferences: \\{character}")
        if character.isalpha() or not character.isascii():
            raise PatternError(f"RE2 has no \\{character}")
        return character

    def _next_two(self) -> str:
        return self._next("its \\x has no digits") + self._next("its \\x has no digits")

    def _bracketed(self) -> frozenset[str]:
        negated = self._take("^")
        found: set[str] = set()
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                name = self._until(":]", "it has a [: without its :]")
                characters = _POSIX_CLASSES.get(name.removeprefix("^"))
                if characters is None:
                    raise PatternError(f"[:{name}:] is not a class of characters")
                found |= NAME_CHARACTERS - characters if name.startswith("^") else characters
                continue
            low = self._next("it has a [ without its ]")
            if low == "\\":
                named = self._named_class()
                if named is not None:
                    found |= named
                    continue
                low = self._literal()
            high = low
            if self._peek("-") and not self._peek("-]"):
                self._take("-")
                high = self._next("it has a [ without its ]")
                high = self._literal() if high == "\\" else high
                if high < low:
                    raise PatternError(f"its range {low}-{high} is empty")
            # All characters of the range and not only those of names: it may have only the other case of a letter.
            found.update(each for each in map(chr, range(128)) if low <= each <= high)
        characters = self._cased(frozenset(found))
        return NAME_CHARACTERS - characters if negated else characters


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _unicode_class(name: str) -> frozenset[str]:
    if name == "Any":
        return NAME_CHARACTERS
    if name == "Latin":
        return frozenset(string.ascii_letters)
    categories = {unicodedata.category(chr(code)) for code in range(0x1_1000)}
    if name not in categories | {category[0] for category in categories}:
        raise PatternError(f"\\p{{{name}}} is not a class of characters")
    return frozenset(each for each in NAME_CHARACTERS if unicodedata.category(each).startswith(name))


# --- Matching ---------------------------------------------------------------------------------------------------------

_State: TypeAlias = tuple[frozenset[int], str]
"""Steps that come next, before assertions and choices are followed, and the last character read, or one like it.

At first that is empty.
"""


class TopicPattern:
    """A regular expression. Raises PatternError if RE2 would not take it, or it is too large."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self._steps: list[tuple[frozenset[str] | str | None, tuple[int, ...]]] = []
        self._emitted = 0
        self._end = self._step(None, ())
        self._start = self._emit(_Reader(text).read(), self._end)
        self._reached: dict[tuple[_State, str], _State | None] = {}
        self._work = 0

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Those of ``names`` that it matches. Raises PatternError if that takes too long."""
        self._work = 0
        return frozenset(name for name in names if self._matches(name))

    def _matches(self, name: str) -> bool:
        state: _State | None = (frozenset({self._start}), "")
        for character in name:
            assert state is not None
            following = self._reached.get((state, character), _UNKNOWN)
            if following is _UNKNOWN:
                following = self._reached[state, character] = self._read(state, character)
            if following is None:
                return False
            state = following
        assert state is not None
        return self._end in self._closure(state, "")

    def _read(self, state: _State, character: str) -> _State | None:
        following: set[int] = set()
        for step in self._closure(state, character):
            accepted, nexts = self._steps[step]
            if isinstance(accepted, frozenset) and character in accepted:
                following.update(nexts)
        return (frozenset(following), "w" if character in _WORD else ".") if following else None

    def _closure(self, state: _State, character: str) -> set[int]:
        """The steps that read a character, and the end, which are reached before ``character`` is read."""
        steps, before = state
        waiting, seen = list(steps), set(steps)
        while waiting:
            kind, nexts = self._steps[waiting.pop()]
            if isinstance(kind, frozenset) or (kind and not _HOLDS[kind](before, character)):
                continue
            for step in nexts:
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
        self._work += len(seen)
        if self._work > _WORK_MAX:
            raise PatternError("it takes too long to match it against the names of all topics")
        return seen

    def _step(self, kind: frozenset[str] | str | None, nexts: tuple[int, ...]) -> int:
        """Add a step: characters that it reads, what has to hold, or None for a choice of the next one."""
        self._steps.append((kind, nexts))
        return len(self._steps) - 1

    def _emit(self, node: _Node, end: int) -> int:
        """The first of the steps for ``node``, after which comes ``end``."""
        self._emitted += 1
        if self._emitted > _SIZE_MAX:
            raise PatternError(f"it is too large: more than {_SIZE_MAX:,} steps")
        match node:
            case _Set(characters):
                return self._step(characters, (end,))
            case _Assertion(kind):
                return self._step(kind, (end,))
            case _Sequence(items):
                for item in reversed(items):
                    end = self._emit(item, end)
                return end
            case _Choice(items):
                return self._step(None, tuple([self._emit(item, end) for item in items]))
            case _Repeat(item, least, most):
                start = end
                if most is None:
                    start = self._step(None, ())
                    self._steps[start] = (None, (self._emit(item, start), end))
                else:
                    for _ in range(most - least):
                        start = self._step(None, (self._emit(item, start), end))
                for _ in range(least):
                    start = self._emit(item, start)
                return start


_UNKNOWN: Final[_State] = (frozenset({-1}), "unknown")

_HOLDS: Final[dict[str, Callable[[str, str], bool]]] = {
    "begin": lambda before, _: not before,
    "end": lambda _, after: not after,
    "boundary": lambda before, after: (before in _WORD) != (after in _WORD),
    "no boundary": lambda before, after: (before in _WORD) == (after in _WORD),
}
