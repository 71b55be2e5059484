"""A mirror, part by part: addresses and settings, whose the target's partitions are, and where it goes on."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.security import Secret, Tls, target_of
from seglog.mirror import claim
from seglog.mirror.claim import Claim
from seglog.mirror.cluster import Cluster, Member
from seglog.mirror.errors import MirrorError
from seglog.mirror.places import broker_place, kafka_place, properties_in
from seglog.mirror.positions import Origin, Partition, Position
from seglog.mirror.resuming import Content, Placed, next_to_copy
from seglog_protocol.messages import DescribeBrokerReply, DescribedListener
from tests.support import each_case, examples
from tests.unit.clients.hand_clock import HandClock


def reply(*listeners: DescribedListener) -> DescribeBrokerReply:
    return DescribeBrokerReply(
        config={}, warnings=[], listeners=list(listeners), versions={}, limits={}, now_ms=0, process=1, user=1
    )


def test_an_address_has_kafkas_port_and_its_scheme_says_whether_with_tls() -> None:
    place = kafka_place("kafka://one:1234,two,[::1]", {})
    assert place.name == "kafka://one:1234,two:9092,[::1]:9092"
    assert place.settings == {
        "bootstrap.servers": "one:1234,two:9092,[::1]:9092",
        "security.protocol": "PLAINTEXT",
    }
    assert kafka_place("kafkas://one", {"sasl.username": "u"}).settings["security.protocol"] == "SASL_SSL"


@each_case("url", ["one:9092", "http://one", "kafka://", "kafka://one:port", "kafka://user:secret@one"])
def test_what_is_no_address_gets_a_sentence_without_passwords(url: str) -> None:
    with pytest.raises(ValueError, match=r"kafka://HOST:PORT|--kafka-config|no address") as raised:
        kafka_place(url, {})
    assert "secret" not in str(raised.value)


def test_a_file_of_settings_is_read_and_shows_no_password(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# account\nsasl.username = u\nsasl.password=a=b\n\n")
    found = properties_in(str(file))
    assert found == {"sasl.username": "u", "sasl.password": "a=b"}
    assert "a=b" not in repr(found)
    assert "a=b" not in repr(kafka_place("kafka://one", found))
    file.write_text("enable.idempotence=false\n")
    with pytest.raises(ValueError, match=r"line 1: enable.idempotence is set by the mirror itself"):
        properties_in(str(file))
    file.write_text("secret\n")
    with pytest.raises(ValueError, match="NAME=VALUE") as raised:
        properties_in(str(file))
    assert "secret" not in str(raised.value)


def test_a_broker_is_reached_at_what_it_advertises_else_at_the_host_that_it_was_asked_at() -> None:
    plain = DescribedListener("PLAINTEXT", "PLAINTEXT", "0.0.0.0:9092")
    target = target_of("broker.example:9192")
    assert broker_place(target, reply(plain)).settings["bootstrap.servers"] == "broker.example:9092"
    told = DescribedListener("PLAINTEXT", "PLAINTEXT", "0.0.0.0:9092", "kafka.example:19092")
    assert broker_place(target, reply(told)).settings["bootstrap.servers"] == "kafka.example:19092"


def test_an_account_goes_to_a_listener_that_takes_it() -> None:
    plain = DescribedListener("PLAINTEXT", "PLAINTEXT", "0.0.0.0:9092")
    secure = DescribedListener("OUT", "SASL_SSL", "0.0.0.0:9093")
    target = target_of("broker:9192", user="u", password=Secret("p"), tls=Tls(ca="ca.pem"))
    place = broker_place(target, reply(plain, secure))
    assert place.settings == {
        "bootstrap.servers": "broker:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    with pytest.raises(ValueError, match="wants an account"):
        broker_place(target_of("broker:9192"), reply(secure))


def test_a_broker_without_such_a_listener_says_how_to_get_one() -> None:
    native = DescribedListener("", "PLAINTEXT", "127.0.0.1:9192")
    http = DescribedListener("http", "PLAINTEXT", "127.0.0.1:9193")
    with pytest.raises(ValueError, match="listeners=PLAINTEXT"):
        broker_place(target_of("broker:9192"), reply(native, http))


# --- Whose a target's partitions are: a mirror's own place of before, a killed mirror's, and another one's that lives -


OWN = Member("mirror 1", "/host", frozenset({"t"}))
OTHER = Member("mirror 2", "/host", frozenset({"t", "u"}))


class Coordinator(Cluster):
    """Answers each question with the next members and after as many seconds; the last answer stays."""

    def __init__(self, clock: HandClock, *answers: tuple[float, Sequence[Member]]) -> None:
        self.name = "kafka://target"
        self.client_id = OWN.client_id
        self._clock = clock
        self._answers = list(answers)

    def members_of(self, group: str) -> list[Member]:
        assert group == "seglog-mirror"
        seconds, members = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self._clock.pass_by(seconds)
        return list(members)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    made = HandClock()
    monkeypatch.setattr(claim, "time", made)
    return made


def wait(coordinator: Coordinator) -> list[str]:
    """What it told meanwhile."""
    told: list[str] = []
    Claim(coordinator, [Partition("t", 0)], told.append)._wait_for_others()
    return told


def test_a_mirror_that_could_not_leave_a_target_that_was_away_waits_for_its_own_place(clock: HandClock) -> None:
    assert wait(Coordinator(clock, (20.0, [OWN]), *[(0.1, [OWN])] * 40, (0.1, []))) == []


def test_a_killed_mirror_is_waited_for_however_long_the_target_was_away_meanwhile(clock: HandClock) -> None:
    told = wait(Coordinator(clock, (20.0, [OTHER]), *[(0.1, [OTHER])] * 10, (15.0, [OTHER]), (6.0, [OTHER]), (0.1, [])))
    assert told == ["waiting for another mirror, mirror 2, to give up t: 6 s if it was killed"]


def test_a_mirror_that_stays_is_named(clock: HandClock) -> None:
    with pytest.raises(MirrorError, match="another mirror, mirror 2 at host, writes t to kafka://target; stop it"):
        wait(Coordinator(clock, (0.1, [OWN, OTHER])))


# --- Where a mirror goes on, by comparing two logs: against a model in which everything is known ----------------------


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
