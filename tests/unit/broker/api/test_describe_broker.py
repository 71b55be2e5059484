"""What a broker tells about its configuration, listeners and process; no secret is among it."""

import pytest

from seglog_broker.api.describe_broker import VALUE_CHARACTERS_MAX, WARNINGS_MAX, BrokerDescriber
from seglog_broker.config import load_config
from seglog_broker.config.broker_config import BROKER_KEYS
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.config.values import HIDDEN, Secret
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.frames import HEADER_BYTES_MAX, encode_value
from seglog_protocol.messages import DescribeBrokerReply
from tests.logs import ManualClock


async def described(*flags: str) -> DescribeBrokerReply:
    config, _ = load_config(None, "", {}, ["log.dir=/data", *flags])
    return await BrokerDescriber(LiveConfig(config, DynamicConfig()), ManualClock(), InlineOffload()).describe()


async def test_no_secret_is_told() -> None:
    """Every key of a secret, set, is described without its value."""
    secrets = [name for name, key in BROKER_KEYS.items() if isinstance(key.kind, Secret)]
    assert "ssl.key.password" in secrets
    reply = await described(*(f"{name}=planted-{name}" for name in secrets))
    assert all(reply.config[name].value == HIDDEN for name in secrets)
    assert b"planted-" not in bytes(encode_value(reply.to_wire()))


async def test_what_is_left_open_is_a_warning() -> None:
    reply = await described("seglog.listen=0.0.0.0:9192", "seglog.open.to.everyone=true")
    assert any("open to everyone" in warning for warning in reply.warnings)


@pytest.mark.parametrize(
    ("key", "item", "separator"),
    [("super.users", "User:{:030}", ";"), ("advertised.listeners", "PLAINTEXT://h{}:9092", ",")],
)
async def test_long_values_leave_room_in_the_header(key: str, item: str, separator: str) -> None:
    reply = await described(f"{key}={separator.join(map(item.format, range(20_000)))}")
    assert len(reply.config[key].value) == VALUE_CHARACTERS_MAX + len("...")
    entries = len(reply.config) + WARNINGS_MAX
    assert len(encode_value(reply.to_wire())) < entries * (VALUE_CHARACTERS_MAX + 300) < HEADER_BYTES_MAX
