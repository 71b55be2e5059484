"""Who may do what, by Kafka's requests: a daemon's answers beside those of a real Kafka, api by api."""

import json
from collections.abc import Iterator, Mapping

import pytest

from seglog_broker.listeners.kafka.apis import APIS
from tests.interop.kafka_access_brokers import daemon_with
from tests.interop.kafka_access_cases import (
    ANSWERS,
    ASKED,
    NOT_ASKED,
    OPEN_TO_ALL,
    RUNS,
    answers,
    ungrouped,
)
from tests.interop.kafka_access_differences import DIFFERENCES
from tests.interop.kafka_access_rules import PRINCIPALS, WITHOUT_CLUSTER
from tests.interop.kafka_cases import kept
from tests.interop.kafka_wire import Plain
from tests.support import each_case


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Plain]]:
    """Answers by request and principal."""
    apis = {asked.api for asked in ASKED}
    found = {}
    for title, principals, settings in RUNS:
        directory = tmp_path_factory.mktemp("access") / "data"
        with daemon_with(directory, principals, *settings) as (running, ports):
            for name, by_principal in answers(ports, principals, apis).items():
                found[f"{title}{name}"] = json.loads(json.dumps(by_principal))
            assert "Traceback" not in running.log_text()
    return found


def expected() -> Iterator[tuple[str, Mapping[str, Plain]]]:
    """Kafka's answers, and ours where they are meant to differ, by request and principal."""
    for title, groups in kept(ANSWERS).items():
        principals = WITHOUT_CLUSTER if title.startswith(OPEN_TO_ALL) else PRINCIPALS
        text = json.dumps(groups)
        for _, titles, kafka, ours in DIFFERENCES:
            if title.removeprefix(OPEN_TO_ALL).startswith(titles):
                text = text.replace(kafka, ours)
        yield title, ungrouped(json.loads(text), principals)


@each_case("api", dict.fromkeys(asked.api for asked in ASKED))
def test_answers_are_kafkas_but_for_the_differences_in_the_table(
    api: str, found: Mapping[str, Mapping[str, Plain]]
) -> None:
    wrong = []
    for title, by_principal in expected():
        if title.removeprefix(OPEN_TO_ALL).startswith(f"{api} v"):
            differing: dict[str, list[str]] = {}
            for principal, answer in by_principal.items():
                if found[title][principal] != answer:
                    differs = f"{title}: {json.dumps(found[title][principal])}, and Kafka has {json.dumps(answer)}"
                    differing.setdefault(differs, []).append(principal)
            wrong += [f"{differs}, for {', '.join(those)}" for differs, those in differing.items()]
    assert not wrong, "\n".join(wrong)


def test_every_api_is_asked_in_its_lowest_and_highest_version() -> None:
    asked = {(each.api, version) for each in ASKED for version in each.versions}
    served = {(api.name, api.versions[at]) for api in APIS.values() if api.name not in NOT_ASKED for at in (0, -1)}
    assert not served - asked
