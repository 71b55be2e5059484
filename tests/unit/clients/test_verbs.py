"""Verbs are declared once, and each face has them as methods of its own; Kafka's words are answered with ours."""

import re
from inspect import getdoc, iscoroutinefunction, signature
from typing import Any

import pytest

import seglog
import seglog.asyncio
import seglog.trio
from seglog.asynchronous import client as awaited
from seglog.client import Explain
from seglog.core.consumer_options import GroupOptions
from seglog.core.wrong_face import OURS
from seglog.verbs import ClientVerbs, ExplainVerbs, Verb
from tests.support import each_case
from tests.unit.clients.faces import Face


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


# --- Kafka's words for arguments and results are answered with ours, by each face -------------------------------------


def test_each_argument_that_is_named_is_there() -> None:
    there = {"connect": seglog.connect.__annotations__, "producer": seglog.Client.producer.__annotations__}
    there["consumer"] = GroupOptions.__dataclass_fields__
    for name, function in re.findall(r"(\w+)(?: or \w+)? of (\w+)\(\)", " ".join(OURS.values())):
        assert name == "argument" or name in there[function]


@pytest.mark.parametrize("connect", [seglog.connect, seglog.asyncio.connect, seglog.trio.connect])
def test_what_connect_is_given(connect: Any) -> None:
    for given, said in (
        ({"bootstrap.servers": "a:1"}, "'bootstrap_servers'; here it is the address, the first argument of connect()"),
        ({"group_id": "g", "password": "s3cret"}, "'group_id'; here it is group of consumer()"),
        ({"request_timeout_ms": 1}, "'request_timeout_ms'; did you mean request_timeout, in seconds?"),
    ):
        with pytest.raises(TypeError, match=re.escape(f"connect() has no argument {said}")) as caught:
            connect(**given)
        assert caught.traceback[-1].frame.f_locals["keywords"].get("password") != "s3cret"
    for address, said in ((34411, "34411: write 'localhost:34411'"), ({"sasl.password": "s3cret"}, "dict")):
        with pytest.raises(TypeError, match=f"HOST:PORT, not {said}$"):
            connect(address)


async def test_what_a_client_is_given_and_a_delivery_has(face: Face) -> None:
    async with face(topics={"t": 1}) as (_, client):
        for name, wrong, ours in (
            ("producer", "acks", 'here it is ack of producer(), "none", "os" or "disk"'),
            ("transaction", "enable_idempotence", "here it is idempotent of producer()"),
            ("create_topic", "num_partitions", "did you mean partitions?"),
            ("consumer", "isolation_level", "did you mean isolation?"),
        ):
            with pytest.raises(TypeError, match=re.escape(f"{name}() has no argument {wrong!r}; {ours}")):
                await getattr(client, name)("t", **{wrong: 1})
        with pytest.raises(ValueError, match=r"'disk' \(acks of Kafka: 0, 1 and all\), not 'all'$"):
            await client.producer("t", ack="all")
        async with client.producer("t") as producer:
            delivery = await producer.send(b"v")
            for name, said in (
                ("offset", " beside its receipt, which result\\(\\) waits for"),
                ("get", ": see result"),
            ):
                with pytest.raises(AttributeError, match=f"no '{name}'{said}"):
                    getattr(delivery, name)
            assert (await delivery).offset == 0
