"""Verbs are declared once, and each face has them as methods of its own."""

from inspect import getdoc, iscoroutinefunction, signature

import seglog
import seglog.trio
from seglog.asynchronous import client as awaited
from seglog.client import Explain
from seglog.verbs import ClientVerbs, ExplainVerbs, Verb
from tests.support import each_case


@each_case(
    ("declared", "blocking", "asynchronous"),
    [(ClientVerbs, seglog.Client, seglog.trio.Client), (ExplainVerbs, Explain, awaited.Explain)],
    ids=["client", "explain"],
)
def test_each_face_has_every_verb_with_its_signature_and_docstring(
    declared: type, blocking: type, asynchronous: type
) -> None:
    verbs = [name for name, each in vars(declared).items() if isinstance(each, Verb)]
    assert len(verbs) >= 3
    for name in verbs:
        here, there = vars(blocking)[name], vars(asynchronous)[name]
        assert (iscoroutinefunction(here), iscoroutinefunction(there)) == (False, True)
        assert signature(here) == signature(there)
        assert "Conversation" not in str(signature(here))
        assert getdoc(here) == getdoc(there) != ""
        assert here.__qualname__ == f"{blocking.__qualname__}.{name}"


@each_case("face", [seglog.Client, seglog.trio.Client])
def test_a_class_below_a_face_may_have_a_verb_of_its_own(face: type) -> None:
    below = type("Below", (face,), {"topics": lambda self: "its own"})
    assert below.topics(None) == "its own"  # type: ignore[attr-defined]
