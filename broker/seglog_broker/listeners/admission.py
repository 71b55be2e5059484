"""Waiting for the memory of a large request. Its connection receives nothing until then."""

import trio

from seglog_broker.listeners.intake import Intake
from seglog_broker.runtime.request_memory import Share


async def wait_for_memory(intake: Intake) -> None:
    """Wait for memory for the next part of a large frame."""
    size = intake.reader.wanted
    if await take(intake, size):
        intake.reader.grant(size)


async def take(intake: Intake, size: int) -> bool:
    """Wait for ``size`` bytes of memory. False if ``Intake.stop`` comes first."""
    share = intake.begin_share()
    with trio.CancelScope() as intake.admission:
        if intake.is_stopped:
            intake.admission.cancel()
        await take_share(share, size)
    is_granted = not intake.admission.cancelled_caught
    intake.admission = None
    return is_granted


async def take_share(share: Share, size: int) -> None:
    """Wait for ``size`` more bytes; a checkpoint only if it has to wait. May be cancelled."""
    if share.take_now(size):
        return
    share.begin_wait(size)
    try:
        await share.served.wait()
    finally:
        share.end_wait()
