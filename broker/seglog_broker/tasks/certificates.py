"""Watches over the certificates of TLS: their end is told in good time."""

from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.security.tls import ServerTls
from seglog_broker.storage.io.clock import Clock

log = get_logger()

LOOK_SECONDS: Final = 86_400.0
"""Time between two looks, and so between two warnings."""


async def run_certificate_watch(tls: ServerTls | None, clock: Clock) -> None:
    """Log at the start, after each reload, and once a day, where a certificate has ended or ends soon."""
    if tls is None:
        await trio.sleep_forever()
    while True:
        now_ms = clock.now_ms()
        for certificate in tls.certificates:
            problem = certificate.problem(now_ms)
            if problem is not None:
                tell = log.warning if certificate.is_valid(now_ms) else log.error
                tell("certificate_problem", problem=problem)
        with trio.move_on_after(LOOK_SECONDS):
            await tls.replaced()
