"""Fetches of share groups: records are acquired for a member, and its acknowledgements end that.

Source: Kafka's SharePartitionManager, DelayedShareFetch.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import trio

from seglog_broker.api.share_collection import LOOKS_A_TURN, Collection, Sources, Taken
from seglog_broker.api.share_lines import ShareLines
from seglog_broker.api.share_reads import ShareReads
from seglog_broker.api.share_sessions import Place, ShareSession, ShareSessions
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime.begun import by_task
from seglog_broker.storage.io.pauses import ColdReadError, RecordsWantedError, TurnWantedError
from seglog_protocol.errors import SeglogError, without_frames
from seglog_protocol.kafka import messages

ERRORS_HELD_SECONDS: Final = 0.1
"""A response of nothing but errors is held for so long: some clients ask again at once."""


@dataclass(eq=False, repr=False)
class ShareFetchService(Service):
    """Serves members of share groups whose sessions say where they fetch."""

    _shares: ShareService
    _purgatory: FetchPurgatory

    def __post_init__(self) -> None:
        self.sessions = ShareSessions(lambda: self._config.current.group_share_max_share_sessions)
        self.sources = Sources(self._shares, self._table, self._directory, ShareReads(self._directory.handles))
        self._lines = ShareLines(self._purgatory)
        self._shares.on_available = self._lines.note_available
        self._is_stopping = False
        self._ended: list[tuple[ShareSession, list[Place]]] = []  # sessions, and where their members may hold records
        self._wanted = trio.Event()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for records."""
        return len(self._lines.waiting)

    def lock_ms(self, group: str) -> int:
        """How long the records that a member of a group acquires are its own."""
        return self._shares.settings.of(group).lock_ms

    async def idle(self, max_wait_ms: int) -> None:
        """Return after as long as a fetch waits that finds nothing."""
        await self._lines.wait((), trio.current_time() + self._wait_ms(max_wait_ms) / 1000, lambda _signal: None)

    def end_waits(self) -> None:
        """Answer all that wait, now and from now on: the broker stops."""
        self._is_stopping = True
        for signal in list(self._lines.waiting):
            signal.set()

    # --- The end of sessions ------------------------------------------------------------------------------------------

    def note_left(self, connection: Any) -> None:
        """A connection has ended: so do the sessions that it has begun."""
        sessions = self.sessions.of_connection(connection)
        for session in sessions:
            self.end_session(session, LOOKS_A_TURN // len(sessions))

    def end_session(self, session: ShareSession, at_once: int = LOOKS_A_TURN) -> None:
        """End a session. The records of its member are available to others, those of very many partitions soon."""
        places = list(session.places)
        self.sessions.remove(session)
        at_once = 0 if self._ended else at_once
        for place in places[:at_once]:
            self._release(session, place)
        if places[at_once:]:
            self._ended.append((session, places[at_once:]))
            self._wanted.set()

    async def run(self) -> None:
        """Give records of sessions that have ended to others, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._ended:
                session, places = self._ended[0]
                async for place in self._scheduler.spread(places, LOOKS_A_TURN):
                    self._release(session, place)
                del self._ended[0]

    def _release(self, session: ShareSession, place: Place) -> None:
        if self.sessions.find(session.group, session.member) is not None:
            return  # the member goes on in another session
        with suppress(SeglogError):  # it is gone, and with it what the member held
            machine = self.sources.machine(session.group, place)
            machine.release(session.member, self._shares.runtime.now())
            self._shares.runtime.carry_out(machine.key)

    # --- Records ------------------------------------------------------------------------------------------------------

    async def fetch(
        self, session: ShareSession, places: Sequence[Place], wanted: messages.ShareFetchRequest
    ) -> dict[Place, Taken]:
        """Records for a member, of the places in their order, as soon as there are some; what has none is left out.

        An earlier fetch of the session that waits is answered.
        """
        session.end_wait()
        mine = session.fetches
        wait_ms = self._wait_ms(wanted.max_wait_ms) if wanted.max_records and wanted.max_bytes else 0
        now = trio.current_time()
        deadline = now + wait_ms / 1000
        while True:
            is_over = self._is_stopping or session.fetches != mine or now >= deadline
            collection = Collection(self.sources, session, places, wanted, is_over=is_over)
            try:
                with self._directory.handles.only_warm:
                    taken = collection.go_on()
            except (ColdReadError, RecordsWantedError, TurnWantedError):  # the disk is waited for by a task
                await by_task()
                taken = await self._scheduler.retry_after_cold_read(collection.go_on)
            finally:
                self._lines.pass_on(collection.seen)
            if collection.unready:
                await by_task()
                failed = await self._make_ready(collection)
                if failed:
                    return failed
                continue
            if is_over or any(each.acquired for each in taken.values()):
                return taken
            if collection.has_passed:
                await self._scheduler.turn()
            else:
                if not collection.watched:
                    deadline = min(deadline, trio.current_time() + ERRORS_HELD_SECONDS)
                await self._lines.wait(collection.watched, deadline, session.note_wait)
            now = trio.current_time()

    def _wait_ms(self, max_wait_ms: int) -> int:
        return max(0, min(max_wait_ms, self._config.current.seglog_fetch_max_wait_ms_max))

    async def _make_ready(self, collection: Collection) -> dict[Place, Taken]:
        """Make share partitions ready for their logs. Returns those that cannot be."""
        failed = {}
        for machine, partition in collection.unready:
            try:
                await self._shares.beginning.make_ready(machine, partition)
            except SeglogError as error:
                key = machine.partition
                failed[key.topic_id, key.partition] = Taken(error=without_frames(error))
        return failed
