"""A run from its first connection to its report."""

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import trio

from seglog.core.errors import count_of
from seglog.load.measurement import Control, Measurement, Session
from seglog.load.plan import CATCH_UP_SECONDS, Loop, Plan
from seglog.load.report import Report
from seglog.load.verbs import ARRIVAL_SECONDS, consume, produce, roundtrip
from seglog.trio import Client
from seglog_protocol.errors import SeglogError, UnknownTopicError
from seglog_protocol.messages import TopicDescription

Connect = Callable[[], Client]

REMOVAL_SECONDS: Final = 5.0

_LATE_SECONDS: Final = CATCH_UP_SECONDS + 0.5  # how much later than planned the loop may end
_ANSWER_SECONDS: Final = ARRIVAL_SECONDS + 2.0


async def run(plan: Plan, connect: Connect) -> Report:
    """Run a plan. Errors during the run are counted; an interrupted run still returns its report.

    A topic created by the run is deleted at the end, unless the plan keeps it. Raises KeyboardInterrupt when it was
    interrupted before anything was measured, and SeglogError when it cannot begin.
    """
    control = Control()
    failure: SeglogError | None = None
    report: Report | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(control.watch)
        with control.scope:
            try:
                report = await _Runner(plan, connect, control).run()
            except SeglogError as error:
                failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if report is None:
        raise KeyboardInterrupt
    return report


class _Runner:
    def __init__(self, plan: Plan, connect: Connect, control: Control) -> None:
        self.plan = plan
        self.control = control
        self.notes: list[str] = []
        self._connect = connect
        self._measurement = Measurement(clock=trio.current_time)

    async def run(self) -> Report | None:
        plan = self.plan
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self._connect()) for _ in range(plan.connections)]
            name = plan.topic or f"load-{os.urandom(4).hex()}"
            topic, is_ours = await self._topic(clients[0], name)
            try:
                session = Session(plan, clients, topic, self.control, self._measurement)
                if plan.verb == "consume" and plan.topic is None:
                    await self._fill(session)
                report = await self._measured(session)
            finally:
                if is_ours and not plan.keep:
                    await self._remove(clients[0], name)
            return report
        return None

    # --- The topic ----------------------------------------------------------------------------------------------------

    async def _topic(self, client: Client, name: str) -> tuple[TopicDescription, bool]:
        """The topic, and whether this run created it. A topic named for ``consume`` must exist."""
        plan = self.plan
        is_ours = False
        try:
            topic = await client.describe_topic(name)
        except UnknownTopicError:
            if plan.verb == "consume" and plan.topic is not None:
                raise
            await client.create_topic(name, plan.partitions or 1)
            is_ours = True
            topic = await client.describe_topic(name)
        if plan.partitions not in {None, topic.partitions}:
            self.notes.append(f"{name} already existed, with another number of partitions than --partitions")
        return topic, is_ours

    async def _remove(self, client: Client, name: str) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REMOVAL_SECONDS) as scope:
            try:
                await client.delete_topic(name)
            except SeglogError as error:
                self.notes.append(f"{name} could not be deleted: {error}")
        if scope.cancelled_caught:
            self.notes.append(f"{name} could not be deleted: no answer within {REMOVAL_SECONDS:g} s")

    async def _fill(self, session: Session) -> None:
        """Write the records to read; not measured."""
        plan = replace(self.plan, verb="produce", count=self.plan.fill, duration=None, ack="os", batch_bytes=64 * 1024)
        filling = replace(session, plan=plan, control=Control(), measurement=Measurement(clock=trio.current_time))
        await produce(filling)
        if filling.control.ended_by == "error":
            self._measurement.errors += filling.measurement.errors
            self.control.end("error")
        written = filling.measurement.sent.records
        self.notes.append(f"this run wrote what it read: {written:,} records of {plan.record_size:,} B")
        for code, count in filling.measurement.errors.items():
            self.notes.append(f"while writing them: {code}, {count_of(count, 'time')}")

    # --- The work -----------------------------------------------------------------------------------------------------

    async def _measured(self, session: Session) -> Report:
        """Run the load to its end, and report what was measured. Raises SeglogError for one that could not begin."""
        control, measurement = self.control, self._measurement
        loop: Loop | None = None
        failure: SeglogError | None = None
        control.is_measuring = True
        with control.answers:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_in_time)
                try:
                    if session.plan.verb == "consume":
                        await consume(session)
                    else:
                        loop = await (produce if session.plan.verb == "produce" else roundtrip)(session)
                except SeglogError as error:
                    failure = error  # before the first record
                nursery.cancel_scope.cancel()
        measurement.end()
        if failure is not None:
            raise failure
        return Report(
            session.plan,
            session.topic.name,
            session.topic.partitions,
            None if loop is None else loop.batch_records,
            measurement,
            control.ended_by or "end",
            0 if loop is None else loop.unsent,
            self.notes,
        )

    async def _end_in_time(self) -> None:
        """Enforce the end of the run: after the plan's time, and a limited wait for answers."""
        control = self.control
        with trio.move_on_after(float("inf") if self.plan.duration is None else self.plan.duration + _LATE_SECONDS):
            await control.ended()
        control.end("duration")
        control.answers.deadline = min(control.answers.deadline, trio.current_time() + _ANSWER_SECONDS)
