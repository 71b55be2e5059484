"""A clock for the blocking client that moves when a test says so."""

import time


class HandClock:
    """Stands in for the module ``time`` in a module of the client."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns()

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    sleep = pass_by
