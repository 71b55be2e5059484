"""How much processor time each turn of the loop takes, by the steps of tasks."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

import trio


class Turns(trio.abc.Instrument):
    """The longest step of any task, seconds of processor time, and whose it was."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.task = ""
        self._began = thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = thread_time() - self._began
        if took > self.longest:
            self.longest, self.task = took, task.name


@contextmanager
def measured() -> Iterator[Turns]:
    """Measure the steps of the block, without the garbage collector, which looks at what other tests left."""
    gc.collect()
    gc.disable()
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)
        gc.enable()
