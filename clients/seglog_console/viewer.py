"""The broker as one account sees it: a client that stays connected, and the readings that all pages share."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from seglog.asyncio import Client
from seglog.cli.overview.readings import SHARE, Numbers, Reading
from seglog_protocol.errors import SeglogError

READING_SECONDS: Final = 2.0
"""Time between two readings, however many pages ask."""
PAUSE_MAX_SECONDS: Final = 10.0
"""The longest time between two questions: an answer that a restart has held up says nothing about the next one."""
AT_ONCE: Final = 4
"""Requests of one page under way together."""
KEPT_MAX: Final = 200
"""Answers that are kept for other pages, while they are new; the one asked for longest ago makes room."""
_ALWAYS: Final = ("seglog_start_time_seconds", "seglog_problems")

T = TypeVar("T")


class _Answer:
    """The last answer to one question; ``due`` is when it is asked again, seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.asking = asyncio.Lock()
        self.due = 0.0
        self.value: Any = None
        self.failed_at = 0.0
        self.error: SeglogError | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """A turn to ask. Who has waited for a turn that failed shares its error: nobody waits for two."""
        came = time.monotonic()
        async with self.asking:
            if self.error is not None and self.failed_at > came:
                raise self.error
            try:
                yield
            except SeglogError as error:
                self.error, self.failed_at = error, time.monotonic()
                raise


class Viewer:
    """A client, and the broker's samples, read at most each READING_SECONDS for all pages and streams together."""

    def __init__(self, client: Client, ended: asyncio.Event) -> None:
        self.client = client
        self._ended = ended
        self._samples = _Answer()
        self._now: Reading | None = None
        self._before: Reading | None = None
        self._names: dict[str, None] = dict.fromkeys(_ALWAYS)
        self._answers: dict[Hashable, _Answer] = {}

    @classmethod
    async def opened(cls, tasks: asyncio.TaskGroup, connect: Callable[[], Client]) -> "Viewer":
        """A viewer whose client a task of its own holds until ``close``. Raises what connecting raises."""
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        ended = asyncio.Event()

        async def hold() -> None:
            try:
                async with connect() as client:
                    if not ready.done():
                        ready.set_result(client)
                    await ended.wait()
            except Exception as error:  # noqa: BLE001 - it is whose browser this is for; the group is that of all
                if not ready.done():
                    ready.set_exception(error)

        tasks.create_task(hold())
        try:
            return cls(await ready, ended)
        except BaseException:
            ended.set()
            raise

    def renew(self) -> None:
        """Have all asked again by the next page: something was changed."""
        for answer in (self._samples, *self._answers.values()):
            answer.due = 0.0

    def close(self) -> None:
        """Let the client go."""
        self._ended.set()

    async def numbers(self, names: Sequence[str]) -> tuple[Reading, Numbers]:
        """The newest reading, of these families at least, and what it says beside the one before."""
        async with self._samples.turn():
            began = time.monotonic()
            is_known = self._names.keys() >= set(names)
            if self._now is None or began >= self._samples.due or not is_known:
                self._names |= dict.fromkeys(names)
                families = {family.name: family for family in await self.client.samples(list(self._names))}
                reading = Reading(time.monotonic(), time.time(), self.client.broker, families)
                if Numbers(reading).value("seglog_problems") or Numbers(self._now).value("seglog_problems"):
                    reading = reading._replace(hello=await self.client.ping())
                self._before, self._now = (self._now if is_known else None), reading
                took = reading.at - began
                self._samples.due = began + pause_after(took, READING_SECONDS)
            return self._now, Numbers(self._now, self._before)

    async def shared(
        self, question: Hashable, ask: Callable[[], Awaitable[T]], *, seconds: float = READING_SECONDS
    ) -> T:
        """The result of ``ask``, which is called at most each ``seconds`` for all pages that have the same question.

        What takes long is asked less often: SHARE holds for each question. Raises what ``ask`` raises, to each page.
        """
        now = time.monotonic()
        for old in [one for one, each in self._answers.items() if each.due < now and not each.asking.locked()]:
            del self._answers[old]
        answer = self._answers.pop(question, None) or _Answer()
        self._answers[question] = answer
        while len(self._answers) > KEPT_MAX:
            del self._answers[next(iter(self._answers))]
        async with answer.turn():
            if (began := time.monotonic()) >= answer.due:
                answer.value = await ask()
                answer.due = began + pause_after(time.monotonic() - began, seconds)
            value: T = answer.value
            return value


def pause_after(took: float, least: float) -> float:
    """Seconds from a question, which took so long, to the next one: at least ``least``."""
    return max(least, min(took / SHARE, PAUSE_MAX_SECONDS))


async def several(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results of calls, AT_ONCE of them under way at a time: requests share one connection with other pages."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await call()

    return await asyncio.gather(*map(one, calls))
