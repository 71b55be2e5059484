"""Where a mirror goes on, by comparing two logs: against a model in which everything is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.mirror.errors import MirrorError
from seglog.mirror.positions import Origin, Position
from seglog.mirror.resuming import Content, Placed, next_to_copy
from tests.support import examples


def content(number: int) -> Content:
    return Content(b"k%d" % number, b"v", (), number)


@settings(max_examples=examples(400))
@given(st.data())
def test_it_goes_on_behind_the_last_record_that_was_written_whatever_compaction_has_taken_since(
    data: st.DataObject,
) -> None:
    """The source had some offsets, the target got the first of them, then the source lost some, never its last."""
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=20))
    offsets = [sum(gaps[: index + 1]) + 10 for index in range(len(gaps))]
    written = data.draw(st.integers(0, len(offsets)))
    kept = [offset for offset in offsets[:-1] if data.draw(st.booleans())] + offsets[-1:]
    tail = [Placed(1000 + index, content(offset)) for index, offset in enumerate(offsets[:written])]
    following = next_to_copy(tail, (Placed(o, content(o)) for o in kept), 10, offsets[-1] + 1)
    last = offsets[written - 1] if written else 9
    assert [offset for offset in kept if offset >= following] == [offset for offset in kept if offset > last]


def test_what_no_mirror_wrote_is_seen() -> None:
    written = [Placed(0, content(0)), Placed(1, content(77))]
    with pytest.raises(MirrorError, match="offset 1 is not the source's at offset 1"):
        next_to_copy(written, (Placed(o, content(o)) for o in range(5)), 0, 5)
    with pytest.raises(MirrorError, match="offset 1"):
        next_to_copy(written, iter([Placed(0, content(0))]), 0, 1)


def test_a_position_comes_back_from_its_metadata_and_other_metadata_is_none() -> None:
    position = Position(Origin("c", "t", "u"), 70, 60, 50, filling=True)
    assert Position.decode(60, position.encode()) == position
    for other in ("", "{}", "[]", "7", '{"cluster":"c"}', "at 7"):
        assert Position.decode(60, other) is None
