"""Write made-up commit events, one JSON object a line: something to feed a broker with.

    python examples/make_events.py --count 100000 --seed 7

    {"ts":1704067404805,"path":"storage/config_01.py","author":"ines","added":25,"deleted":47,"message":"Remove roll"}

``ts`` is milliseconds since 1970, UTC. However many there are, the events spread over the year 2024, so a date in that
year finds some. They come in the order of their merge: one in twelve was written hours or days before it, so that
timestamps mostly rise and sometimes step back, as in real life. Some paths change far more often than others.

The same count and seed give the same bytes on every Python: of the module ``random`` only ``random()`` is used, the one
method whose results are promised never to change.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Final

YEAR_START_MS: Final = 1_704_067_200_000
"""2024-01-01T00:00:00Z."""

YEAR_MS: Final = 366 * 86_400_000

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_LATE_SHARE: Final = 1 / 12

_FOLDERS: Final = ("storage", "listeners", "client", "protocol", "tasks", "tests", "docs", "deploy")
_STEMS: Final = ("segment", "index", "recovery", "config", "server", "frames", "producer", "consumer", "errors", "main")
_ENDINGS: Final = (".py", ".py", ".py", ".md", ".toml")
_AUTHORS: Final = ("ines", "kofi", "maren", "tomasz", "yuki", "aïcha", "rafael", "sunniva")
_VERBS: Final = ("Fix", "Add", "Rename", "Test", "Simplify", "Document", "Speed up", "Remove")
_THINGS: Final = ("roll", "lookup", "long poll", "torn tail", "retry", "time index", "checkpoint", "limits", "hints")

Event = dict[str, int | str]


def make_events(count: int, seed: int) -> Iterator[Event]:
    """``count`` events, always the same for the same arguments."""
    draw = random.Random(seed).random
    merged = float(YEAR_START_MS)
    for number in range(count):
        # Steps of random length that come out at the end of the year, wherever they are now.
        merged += (YEAR_START_MS + YEAR_MS - merged) / (count - number + 1) * 2 * draw()
        written = int(merged)
        if draw() < _LATE_SHARE:
            written = max(YEAR_START_MS, written - 10 * _MINUTE_MS - int(3 * _DAY_MS * min(draw(), draw(), draw())))
        # The smallest of several draws: early words and small numbers come often, late and large ones seldom.
        folder = _pick(_FOLDERS, min(draw(), draw()))
        stem = f"{_pick(_STEMS, min(draw(), draw()))}_{int(40 * min(draw(), draw(), draw())):02d}"
        yield {
            "ts": written,
            "path": f"{folder}/{stem}{_pick(_ENDINGS, draw())}",
            "author": _pick(_AUTHORS, min(draw(), draw())),
            "added": int(200 * min(draw(), draw(), draw(), draw())) + 1,
            "deleted": int(120 * min(draw(), draw(), draw(), draw())),
            "message": f"{_pick(_VERBS, draw())} {_pick(_THINGS, draw())}",
        }


def _pick(words: Sequence[str], drawn: float) -> str:
    """The word at ``drawn`` of the way, in [0, 1)."""
    return words[int(len(words) * drawn)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write events to standard output until there are enough, or until nobody reads them."""
    parser = argparse.ArgumentParser(description="Write made-up commit events of the year 2024 as JSON lines.")
    parser.add_argument("--count", type=int, default=100_000, help="how many (default 100000)")
    parser.add_argument("--seed", type=int, default=7, help="another number, other events (default 7)")
    options = parser.parse_args(arguments)
    try:
        for event in make_events(options.count, options.seed):
            sys.stdout.buffer.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # `| head` has enough. What is left in the buffer must not raise when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
