"""One transport and its Connection, shared by any number of tasks.

A task of the client reads: it hands every reply to the handler given with its request. Writing is whoever sends, one at
a time. A cancelled call is forgotten, and its reply dropped when it comes; cut short in the middle of writing, the link
is closed, because half a frame would put the two ends out of step.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from seglog.connection import STALLED_SECONDS, Connection, Reply, Unsent
from seglog.conversations import Conversation, converse_async
from seglog.failures import copied
from seglog.trio.background import Background
from seglog.trio.transport import Transport
from seglog.words import seconds_of
from seglog_protocol.errors import ClientClosedError, ClientTimeoutError, ConnectionLostError, SeglogError
from seglog_protocol.frames import Buffer
from seglog_protocol.messages import HelloReply, Request

ResultT = TypeVar("ResultT")

Handler = Callable[[Reply], None]
"""Called by the reading task; never waits and never raises."""


class Link:
    """A connected transport, owned: ``close`` closes it. Its reading task is one of the client's.

    ``hello`` is what the broker said about itself when the link was opened; ``on_failed`` is called when the link is
    over.
    """

    hello: HelloReply

    def __init__(self, transport: Transport, server: str, background: Background) -> None:
        self.server = server
        self.on_failed: Callable[[], None] | None = None
        self.failure: SeglogError | None = None
        """Why the link is over, None while it is not."""
        self._transport = transport
        self._connection = Connection(server)
        self._writing = trio.Lock()
        self._handlers: dict[int, Handler] = {}
        self._answers: set[Answer] = set()
        self._reading = background.start(self._read, f"seglog link to {server}")

    # --- Asking -------------------------------------------------------------------------------------------------------

    async def converse(self, conversation: Conversation[ResultT], *, seconds: float) -> ResultT:
        """Lead a conversation; each of its requests may take ``seconds``. Raises what ``ask`` does."""
        return await converse_async(
            conversation, lambda question: self.ask(question.request, question.payload, seconds=seconds), trio.sleep
        )

    async def ask(self, request: Request, payload: Sequence[Buffer] = (), *, seconds: float) -> Reply:
        """Send a request and wait for its reply, which may be an error.

        ClientTimeoutError after ``seconds``, with the link still usable; ConnectionLostError when it breaks.
        """
        deadline = trio.current_time() + seconds
        answer = await self.start(request, payload, seconds=seconds)
        try:
            if not await answer.wait(deadline):
                raise ClientTimeoutError(f"{self.server} gave no answer to {request.api} within {seconds_of(seconds)}")
        finally:
            self.forget(answer)
        assert answer.reply is not None
        return answer.reply

    async def start(self, request: Request, payload: Sequence[Buffer] = (), *, seconds: float) -> "Answer":
        """Send a request; its answer is on its way then. ``forget`` it in the end."""
        answer = Answer(self)
        self._answers.add(answer)
        try:
            answer.request_id = await self.send(request, payload, on_reply=answer.take, seconds=seconds)
        except BaseException:
            self._answers.discard(answer)
            raise
        return answer

    def forget(self, answer: "Answer") -> None:
        """Nobody waits for this answer any more; fine also when it has come."""
        self._answers.discard(answer)
        self.abandon(answer.request_id)

    async def send(
        self,
        request: Request,
        payload: Sequence[Buffer] = (),
        *,
        on_reply: Handler | None,
        seconds: float,
        on_stalled: Callable[[], bool] | None = None,
    ) -> int:
        """Write a request and return its id without waiting for a reply; ``on_reply`` None: none will come.

        ClientTimeoutError when it is not written within ``seconds``; the link stays usable only if none of the request
        has been written by then. While the broker takes nothing, ``on_stalled`` is called every half second, and says
        whether to go on; with False the time counts as over.
        """
        with trio.move_on_after(seconds) as scope:
            async with self._writing:
                self.raise_failure()
                request_id, buffers = self._connection.send(request, payload, is_answered=on_reply is not None)
                if on_reply is not None:
                    self._handlers[request_id] = on_reply
                try:
                    await self._write(Unsent(buffers), scope, on_stalled)
                except BaseException:
                    self.abandon(request_id)
                    raise
                return request_id
        raise ClientTimeoutError(f"{self.server} took no more bytes in the time given")

    def abandon(self, request_id: int) -> None:
        """Nobody wants this reply any more; a no-op when it has come."""
        self._handlers.pop(request_id, None)
        self._connection.abandon(request_id)

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the transport; everybody who waits gets ClientClosedError."""
        self.fail(ClientClosedError("the connection was closed"))

    def fail(self, error: SeglogError) -> None:
        """The link is over, for this reason; the first reason given stands."""
        if self.failure is not None:
            return
        self.failure = error
        self._handlers.clear()
        self._transport.close()
        self._reading.cancel()
        for answer in self._answers:
            answer.settle()
        if self.on_failed is not None:
            self.on_failed()

    def raise_failure(self) -> None:
        """Raise what ended the link, if it is over."""
        if self.failure is not None:
            raise copied(self.failure) from self.failure

    # --- Bytes --------------------------------------------------------------------------------------------------------

    async def _write(self, unsent: Unsent, scope: trio.CancelScope, on_stalled: Callable[[], bool] | None) -> None:
        try:
            while not unsent.is_done:
                with trio.move_on_after(STALLED_SECONDS) as stalled:
                    unsent.written(await self._transport.send_some(unsent.buffers()))
                if stalled.cancelled_caught and on_stalled is not None and not on_stalled():
                    scope.cancel()
        except OSError as error:
            self.fail(self._broken(error))
            self.raise_failure()  # which may be an older one: closing breaks what others are doing
        except BaseException:
            if unsent.is_started:
                self.fail(
                    ConnectionLostError(
                        f"the connection to {self.server} was closed: a request was cut short", server=self.server
                    )
                )
            raise

    async def _read(self) -> None:
        connection = self._connection
        failure: SeglogError = ClientClosedError("the client was closed")  # what else would cancel this task
        try:
            while True:
                size = await self._transport.receive_into(connection.get_buffer())
                if size == 0:
                    raise connection.receive_end()
                connection.received(size)
                while (reply := connection.next_reply()) is not None:
                    handler = self._handlers.pop(reply.request_id, None)
                    if handler is not None:
                        handler(reply)
        except OSError as error:
            failure = self._broken(error)
        except SeglogError as error:
            failure = error
        finally:
            self.fail(failure)

    def _broken(self, error: OSError) -> ConnectionLostError:
        return ConnectionLostError(
            f"the connection to {self.server} broke: {error.strerror or error}", server=self.server
        )


class Answer:
    """The answer to one request, on its way."""

    def __init__(self, link: Link) -> None:
        self.request_id = -1
        self.reply: Reply | None = None
        self._link = link
        self._settled = trio.Event()

    def take(self, reply: Reply) -> None:
        """It is there."""
        self.reply = reply
        self._settled.set()

    def settle(self) -> None:
        """It will not come any more, unless it has."""
        self._settled.set()

    async def wait(self, deadline: float) -> bool:
        """Wait until it is there; False when it is not by ``deadline``. Raises what ended the link before that."""
        with trio.move_on_at(deadline):
            await self._settled.wait()
        if self.reply is None:
            self._link.raise_failure()
        return self.reply is not None
