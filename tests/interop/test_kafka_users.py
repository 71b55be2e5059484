"""Kafka's own `kafka-configs --entity-type users` with accounts of a daemon."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings
from tests.interop.kafka_tools import Tools
from tests.interop.sasl_conversation import ClosedError, Conversation
from tests.processes import daemon

pytestmark = [pytest.mark.timeout(600)]

CAROL = ("--entity-type", "users", "--entity-name", "carol")


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Mapping[str, int]]:
    with daemon(tmp_path / "data", *daemon_settings(("PLAINTEXT", "SASL_PLAINTEXT"))) as running:
        (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
        plain, sasl = (int(address.rsplit(":", 1)[1]) for address in ready["kafka"].split(","))
        make_users(plain)
        yield {"PLAINTEXT": plain, "SASL": sasl}
        for secret in ("carol-secret", "another-secret"):
            assert secret not in running.log_text()


def logs_in(ports: Mapping[str, int], password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    with Conversation(ports, "SASL") as talk:
        try:
            talk.scram_login(mechanism, "carol", password)
            talk.is_served()
        except ClosedError:
            return False
        return True


def test_it_makes_changes_and_deletes_an_account(ports: Mapping[str, int]) -> None:
    tools = Tools(ports["PLAINTEXT"])
    assert not logs_in(ports, "carol-secret")
    made = "SCRAM-SHA-256=[iterations=8192,password=carol-secret]"
    told = tools.run("configs", arguments=(*CAROL, "--alter", "--add-config", made))
    assert "Completed updating config for user carol." in told
    assert logs_in(ports, "carol-secret")
    told = tools.run("configs", arguments=(*CAROL, "--describe"))
    assert "SCRAM credential configs for user-principal 'carol' are SCRAM-SHA-256=iterations=8192" in told
    assert "password" not in told
    tools.run("configs", arguments=(*CAROL, "--alter", "--add-config", "SCRAM-SHA-512=[password=carol-secret]"))
    assert logs_in(ports, "carol-secret", "SCRAM-SHA-512")
    tools.run("configs", arguments=(*CAROL, "--alter", "--add-config", "SCRAM-SHA-256=[password=another-secret]"))
    assert not logs_in(ports, "carol-secret")
    assert logs_in(ports, "another-secret")
    tools.run("configs", arguments=(*CAROL, "--alter", "--delete-config", "SCRAM-SHA-256"))
    assert not logs_in(ports, "another-secret")
    assert logs_in(ports, "carol-secret", "SCRAM-SHA-512")
    few = "SCRAM-SHA-256=[iterations=100,password=x]"
    tools.run("configs", arguments=(*CAROL, "--alter", "--add-config", few), fails=True)
