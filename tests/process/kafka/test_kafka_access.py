"""Who may do what, by Kafka's requests: a daemon's answers beside those of a real Kafka, api by api.

``pytest -k Fetch`` of this file asks for that api alone, whose answers fail with the principals that get another one.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from seglog_broker.accounts.commands import locked_accounts
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.security.credentials import ITERATIONS_MIN, from_password
from seglog_broker.storage.directory.accounts import Change
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.interop.kafka_access_cases import (
    ADMIN,
    ANONYMOUS,
    ANSWERS,
    ASKED,
    NOT_ASKED,
    OPEN_TO_ALL,
    RUNS,
    Ports,
    answers,
    password,
    ungrouped,
)
from tests.interop.kafka_access_differences import DIFFERENCES
from tests.interop.kafka_access_rules import PRINCIPALS, WITHOUT_CLUSTER
from tests.interop.kafka_cases import kept
from tests.interop.kafka_wire import Plain
from tests.processes import daemon

MECHANISM: Final = "SCRAM-SHA-256"


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Plain]]:
    """Answers by request and principal, to the apis that are tested."""
    apis = {item.callspec.params["api"] for item in request.session.items if hasattr(item, "callspec")}
    apis |= {"ShareFetch"} if "ShareAcknowledge" in apis else set()  # what it acknowledges
    found = {}
    for title, principals, settings in RUNS:
        directory = tmp_path_factory.mktemp("access") / "data"
        directory.mkdir()
        with locked_accounts(PosixFileSystem(), str(directory)) as accounts:
            accounts.change(
                Change(name, MECHANISM, from_password(MECHANISM, password(name), ITERATIONS_MIN))
                for name in {ADMIN, *principals} - {ANONYMOUS}
            )
        listeners = "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
        told = (listeners, "sasl.enabled.mechanisms=PLAIN", *settings)
        with daemon(directory, *(flag for setting in told for flag in ("--set", setting))) as running:
            (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
            ports = Ports(*(int(address.rsplit(":", 1)[1]) for address in ready["kafka"].split(",")))
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


@pytest.mark.parametrize("api", dict.fromkeys(asked.api for asked in ASKED))
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
