"""What must be true of everything that members of groups and their watcher told. Each check lists what is wrong."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tests.members.lines import AnyLine, Assigned, Committed, Described, Handled, Looked

_NOTHING: Final = -1
"""In the place of an offset where nothing is committed."""


# --- Every record, at least once --------------------------------------------------------------------------------------


def not_handled(lines: Iterable[AnyLine], group: str, ends: Mapping[int, int]) -> list[str]:
    """Records below the ``ends`` of partitions that no member of the group has handled."""
    done: dict[int, set[int]] = defaultdict(set)
    for line in lines:
        if isinstance(line, Handled) and line.group == group:
            done[line.partition].add(line.offset)
    return [
        f"{group} never handled {partition}:{offset}"
        for partition, end in sorted(ends.items())
        for offset in range(end)
        if offset not in done[partition]
    ]


# --- Committed offsets never go back ----------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """The committed offset of a partition was this at some moment between ``begun`` and ``ended``."""

    begun: float
    ended: float
    offset: int
    by: str


def gone_back(lines: Iterable[AnyLine]) -> list[str]:
    """Commits and looks that found less committed than one that had ended before they began.

    Of two that overlap nobody knows which came first. A look that lacks a partition found nothing committed for it.
    """
    wrong = []
    for (group, partition), seen in sorted(_seen(lines).items()):
        ended = iter(sorted(seen, key=lambda one: one.ended))
        before = next(ended)
        highest = None
        for one in sorted(seen, key=lambda one: one.begun):
            while before.ended < one.begun:
                highest = before if highest is None or before.offset > highest.offset else highest
                before = next(ended)  # at the latest ``one`` itself ends this
            if highest is not None and one.offset < highest.offset:
                wrong.append(f"{group}, partition {partition}: {highest}, and then {one}")
    return wrong


def _seen(lines: Iterable[AnyLine]) -> dict[tuple[str, int], list[_Seen]]:
    """By group and partition, all that was seen of committed offsets."""
    found: dict[tuple[str, int], list[_Seen]] = defaultdict(list)
    looks: list[Looked] = []
    for line in lines:
        if isinstance(line, Looked):
            looks.append(line)
        elif isinstance(line, Committed):
            for partition, offset in line.offsets.items():
                found[line.group, partition].append(_Seen(line.begun, line.ended, offset, line.who))
    known = found.keys() | {(look.group, partition) for look in looks for partition in look.offsets}
    for look in looks:
        for group, partition in known:
            if group == look.group:
                offset = look.offsets.get(partition, _NOTHING)
                found[group, partition].append(_Seen(look.begun, look.ended, offset, look.who))
    return found


# --- One owner of a partition in one generation -----------------------------------------------------------------------


def owned_twice(lines: Iterable[AnyLine]) -> list[str]:
    """Partitions of which two members are owners in one generation: by the broker's word, their own, or both."""
    owners: dict[tuple[str, int, int], dict[str, str]] = defaultdict(dict)
    for line in lines:
        for generation, partition, member in _claims(line):
            owners[line.group, generation, partition].setdefault(member, line.who)
    return [
        f"{group}, generation {generation}, partition {partition}: {found}"
        for (group, generation, partition), found in sorted(owners.items())
        if len(found) > 1
    ]


def _claims(line: AnyLine) -> Iterator[tuple[int, int, str]]:
    """Generation, partition and member, where a line says that the partition is the member's."""
    if isinstance(line, Described):
        # Until the leader has assigned, a description has the new generation and the partitions of the old one, as
        # Kafka's has.
        if line.state != "CompletingRebalance":
            for partition, members in line.owners.items():
                for member in members:
                    yield line.generation, partition, member
    elif isinstance(line, (Assigned, Committed)) and line.generation is not None:
        for partition in line.partitions if isinstance(line, Assigned) else line.offsets:
            yield line.generation, partition, line.member


def generations_gone_back(lines: Iterable[AnyLine]) -> list[str]:
    """Descriptions with a lower generation than one that had ended before they began."""
    wrong = []
    last: dict[str, Described] = {}
    for line in lines:
        if isinstance(line, Described):
            before = last.get(line.group)
            if before is not None and before.ended <= line.begun and line.generation < before.generation:
                wrong.append(f"{line.group}: generation {before.generation}, and then {line.generation}")
            last[line.group] = line
    return wrong


# --- Whether the log is one that proves anything ----------------------------------------------------------------------


def looks(lines: Iterable[AnyLine], group: str) -> int:
    """How often the watcher saw owners of all that is assigned and committed offsets; the lesser of the two."""
    mine = [line for line in lines if line.group == group]
    owners = sum(isinstance(line, Described) and bool(line.owners) for line in mine)
    return min(owners, sum(isinstance(line, Looked) and bool(line.offsets) for line in mine))


def without_generation(lines: Iterable[AnyLine]) -> list[str]:
    """Members that have committed, and never told a generation: only the watcher could have found them out."""
    told: dict[str, bool] = {}
    for line in lines:
        if isinstance(line, Committed):
            told[line.who] = told.get(line.who, False) or line.generation is not None
    return sorted(who for who, has_told in told.items() if not has_told)


def wrongs(lines: Sequence[AnyLine], ends: Mapping[int, int]) -> list[str]:
    """All that is wrong with what was told by all groups."""
    groups = sorted({line.group for line in lines})
    return [
        *(wrong for group in groups for wrong in not_handled(lines, group, ends)),
        *gone_back(lines),
        *owned_twice(lines),
        *generations_gone_back(lines),
    ]
