"""Transactions on a daemon that is killed."""

from pathlib import Path

import pytest

import seglog.asyncio
from tests.processes import daemon
from tests.unit.clients.faces import Connect
from tests.unit.clients.test_transaction import values


@pytest.mark.soak
@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_that_was_not_answered_is_asked_for_again(
    connect: Connect, tmp_path: Path, is_commit: bool
) -> None:
    with daemon(tmp_path / "data") as running:
        async with connect(running.address, connect_timeout=2, request_timeout=5) as client:
            await client.create_topic("in", 1)
            txn = client.transaction("app")

            async def end_without_a_broker() -> None:
                async with txn:
                    await (await txn.send("in", "one"))
                    running.kill()
                    await (txn.commit() if is_commit else txn.abort())

            with pytest.raises(seglog.TransactionUnanswered, match="again"):
                await end_without_a_broker()
            with pytest.raises(seglog.ClientError, match=r"call (commit|abort)\(\)"):
                await txn.send("in", "late")
            running.start()
            await (txn.commit() if is_commit else txn.abort())
            async with txn:
                await txn.send("in", "two")
            assert await values(client, "in") == [*(["one"] if is_commit else []), "two"]
