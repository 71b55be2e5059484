"""Logins on Kafka listeners, step by step: a daemon's answers beside those of a real Kafka."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Final

from tests.interop.kafka_cases import as_json, kept
from tests.interop.kafka_security_cases import (
    ANSWERS,
    LISTENERS,
    REAUTH_MS,
    STORIES,
    answers,
    make_users,
)
from tests.interop.kafka_security_differences import DIFFERENCES
from tests.interop.kafka_settings import daemon_settings
from tests.interop.kafka_wire import Plain
from tests.processes import Daemon, daemon

PROTOCOLS: Final = ("PLAINTEXT", "SASL_PLAINTEXT")


@contextmanager
def listening(directory: Path, reauth_ms: int) -> Iterator[tuple[Daemon, Mapping[str, int]]]:
    """A daemon with ``USERS``, and the ports of its listeners by the names of stories."""
    more = {"connections.max.reauth.ms": str(reauth_ms)}
    with daemon(directory, *daemon_settings(PROTOCOLS, more=more)) as running:
        (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
        plain, sasl = (int(address.rsplit(":", 1)[1]) for address in ready["kafka"].split(","))
        make_users(plain)
        yield running, {"PLAINTEXT": plain, "SHORT" if reauth_ms else "SASL": sasl}


def unexpected(kept: Mapping[str, list[Plain]], found: Mapping[str, list[Plain]]) -> list[str]:
    """Where steps are neither Kafka's nor as the table has them: a line for each."""
    wrong = []
    for title, ours in found.items():
        expected = kept[title]
        if title in DIFFERENCES:
            _, at, steps = DIFFERENCES[title]
            expected = expected[:at] + [list(step) for step in steps]
            if _settled(expected) == _settled(kept[title]):
                wrong.append(f"{title} does not differ")
        wrong += [
            f"{title}: {had!r}, and not {wanted!r}"
            for had, wanted in zip_longest(_settled(ours), _settled(expected))
            if had != wanted
        ]
    return wrong


def _settled(value: Plain) -> Plain:
    """An answer in which the absence of a message is null; Kafka has also none of no characters."""
    match value:
        case dict():
            return {name: _settled(item) for name, item in value.items()}
        case list():
            return [_settled(item) for item in value]
    return None if value == "" else value


def test_answers_are_kafkas_but_for_the_differences_in_the_table(tmp_path: Path) -> None:
    expected = kept(ANSWERS)
    assert list(expected) == [story.title for story in STORIES]
    assert expected.keys() > DIFFERENCES.keys()
    found: dict[str, list[Plain]] = {}
    for listeners, reauth_ms in ((set(LISTENERS) - {"SHORT"}, 0), ({"SHORT"}, REAUTH_MS)):
        stories = [story for story in STORIES if story.listener in listeners]
        with listening(tmp_path / str(reauth_ms), reauth_ms) as (running, ports):
            found |= {story.title: answer for story, answer in answers(ports, stories)}
            log = running.log_text()
            assert "Traceback" not in log
            assert "secret" not in log
    assert unexpected(expected, as_json(found)) == []
