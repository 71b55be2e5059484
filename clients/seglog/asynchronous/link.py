"""Links: one transport and its Connection, shared by any number of tasks; and how a link is opened, with retries.

A background task reads, and passes every reply to the handler given with its request. The sending tasks write, one at a
time. The reply to a cancelled call is dropped when it arrives. If a call is cancelled during its write, the link is
closed, because half a frame would corrupt the stream.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from seglog.access import DialerBase, Handler, LinkBase
from seglog.asynchronous.loop import Loop, Opener, Transport
from seglog.core.authentication import Authentication, lasting
from seglog.core.connection import STALLED_SECONDS, Reply, Unsent
from seglog.core.conversations import Conversation, ask, converse_async
from seglog.core.dialing import broken, check_cluster, hello_request, is_unknown_host, refused, saying_hello
from seglog.core.errors import copied, seconds_of
from seglog.core.retries import Attempts
from seglog_protocol import errors
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.messages import HelloReply, Request

if TYPE_CHECKING:
    from seglog.core.tls import TlsSession

ResultT = TypeVar("ResultT")

_ALERT_SECONDS: Final = 0.5
"""Patience for telling a peer why TLS with it did not begin."""


class Link(LinkBase):
    """Owns a connected transport; ``close`` closes it. Its reading task is one of the client's.

    ``on_failed`` is called when the link breaks or is closed.
    """

    def __init__(self, transport: Transport, server: str, loop: Loop, tls: "TlsSession | None" = None) -> None:
        super().__init__(server, tls)
        self._loop = loop
        self._renewing = loop.lock()
        self.on_failed: Callable[[], None] | None = None
        self.failure: errors.SeglogError | None = None
        """Why the link is broken or closed; None while it is usable."""
        self._transport = transport
        self._writing = loop.lock()
        self._answers: set[Answer] = set()
        self._reading = loop.start(self._read, f"seglog link to {server}")

    # --- Who the client is --------------------------------------------------------------------------------------------

    async def authenticate(self, authentication: Authentication, seconds: float) -> None:
        """As the blocking ``Link.authenticate``."""
        began = lasting()
        try:
            session = await self.converse(authentication.exchange(), seconds=seconds)
        except errors.SeglogError as error:
            error.__traceback__ = error.__context__ = None  # the frames that sent what is secret
            raise
        self._authenticated(authentication, session, began)

    async def _renew(self, seconds: float) -> None:
        """Renew the session if it ends soon; other tasks that are about to send wait for that."""
        if self._renewer is self._loop.current_task():
            return  # its requests are the renewal
        async with self._renewing:
            if not self._is_session_over():
                return
            assert self._authentication is not None
            self._renewer = self._loop.current_task()
            try:
                await self.authenticate(self._authentication, seconds)
            except errors.AuthenticationError as error:
                self.fail(error)
                raise
            finally:
                self._renewer = None

    # --- Asking -------------------------------------------------------------------------------------------------------

    async def converse(self, conversation: Conversation[ResultT], *, seconds: float) -> ResultT:
        """Run a conversation; each of its requests may take ``seconds``. Raises what ``ask`` raises."""
        return await converse_async(
            conversation,
            lambda question: self.ask(question.request, question.payload, seconds=seconds),
            self._loop.sleep,
        )

    async def ask(self, request: Request, payload: Sequence[Buffer] = (), *, seconds: float) -> Reply:
        """Send a request and wait for its reply, which may hold an error.

        Raises ClientTimeoutError after ``seconds``, with the link still usable; ConnectionLostError when it breaks.
        """
        deadline = self._loop.now() + seconds
        answer = await self.start(request, payload, seconds=seconds)
        try:
            if not await answer.wait(deadline):
                raise errors.ClientTimeoutError(
                    f"{self.server} did not answer {request.api} within {seconds_of(seconds)}"
                )
        finally:
            self.forget(answer)
        assert answer.reply is not None
        return answer.reply

    async def start(self, request: Request, payload: Sequence[Buffer] = (), *, seconds: float) -> "Answer":
        """Send a request and return its pending answer, which the caller must ``forget`` in the end."""
        answer = Answer(self, self._loop)
        self._answers.add(answer)
        try:
            answer.request_id = await self.send(request, payload, on_reply=answer.take, seconds=seconds)
        except BaseException:
            self._answers.discard(answer)
            raise
        return answer

    def forget(self, answer: "Answer") -> None:
        """Stop waiting for this answer; drop it if it arrives later."""
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
        """Write a request and return its id without waiting for a reply, as the blocking ``Link.send``."""
        if self._is_session_over():
            await self._renew(seconds)
        with self._loop.until(self._loop.now() + seconds):
            async with self._writing:
                self.raise_failure()
                request_id, buffers = self._connection.send(request, payload, is_answered=on_reply is not None)
                if on_reply is not None:
                    self._handlers[request_id] = on_reply
                try:
                    await self._write(buffers, on_stalled)
                except BaseException:
                    self.abandon(request_id)
                    raise
                return request_id
        raise self._takes_no_more()

    def _takes_no_more(self) -> errors.ClientTimeoutError:
        return errors.ClientTimeoutError(f"{self.server} took no more bytes in the time given")

    def abandon(self, request_id: int) -> None:
        """Drop this reply when it arrives; a no-op when it has arrived."""
        self._handlers.pop(request_id, None)
        self._connection.abandon(request_id)

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the transport; waiting calls raise ClientClosedError."""
        self.fail(errors.ClientClosedError("the connection was closed"))

    def fail(self, error: errors.SeglogError) -> None:
        """Break the link with this error; only the first call counts."""
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
        """Raise the link's error if it is broken or closed."""
        if self.failure is not None:
            raise copied(self.failure) from self.failure

    # --- Bytes --------------------------------------------------------------------------------------------------------

    async def _write(self, buffers: Sequence[Buffer], on_stalled: Callable[[], bool] | None) -> None:
        unsent = Unsent(buffers)
        try:
            if self.tls is not None:
                unsent = Unsent(self.tls.seal(buffers))
                unsent.is_started = True  # what is sealed later can be opened only behind it
            while not unsent.is_done:
                with self._loop.until(self._loop.now() + STALLED_SECONDS) as stalled:
                    unsent.written(await self._transport.send_some(unsent.buffers()))
                if stalled.cancelled_caught and on_stalled is not None and not on_stalled():
                    raise self._takes_no_more()  # noqa: TRY301 - as an interrupted write
        except OSError as error:
            self.fail(broken(self.server, error))
            self.raise_failure()  # possibly an older one: closing the link breaks the calls of other tasks
        except BaseException:
            if unsent.is_started:
                self.fail(
                    errors.ConnectionLostError(
                        f"the connection to {self.server} was closed: a request was cut short", server=self.server
                    )
                )
            raise

    async def _read(self) -> None:
        # Nothing else cancels this task.
        failure: errors.SeglogError = errors.ClientClosedError("the client was closed")
        try:
            if self.tls is None:
                await self._receive()
            else:
                await self._open(self.tls)
        except OSError as error:
            failure = broken(self.server, error)
        except errors.SeglogError as error:
            failure = error
        finally:
            self.fail(failure)

    async def _receive(self) -> None:
        while size := await self._transport.receive_into(self._connection.get_buffer()):
            self._pass_on(size)
        raise self._connection.receive_end()

    async def _open(self, tls: "TlsSession") -> None:
        """As ``_receive``, with all that has come."""
        sealed = memoryview(bytearray(tls.receive_bytes))
        while not tls.is_ended:
            tls.received(sealed[: await self._transport.receive_into(sealed)])
            while size := tls.open_into(self._connection.get_buffer()):
                self._pass_on(size)
        raise self._connection.receive_end()

    def _pass_on(self, size: int) -> None:
        for handler, reply in self._received(size):
            handler(reply)


class Answer:
    """The pending answer to one request."""

    def __init__(self, link: Link, loop: Loop) -> None:
        self.request_id = -1
        self.reply: Reply | None = None
        self._link = link
        self._loop = loop
        self._settled = loop.event()

    def take(self, reply: Reply) -> None:
        """Store the reply and wake the waiting task."""
        self.reply = reply
        self._settled.set()

    def settle(self) -> None:
        """Wake the waiting task: no reply will arrive."""
        self._settled.set()

    async def wait(self, deadline: float) -> bool:
        """Wait for the reply; False at ``deadline``. Raises the link's error if it breaks first."""
        with self._loop.until(deadline):
            await self._settled.wait()
        if self.reply is None:
            self._link.raise_failure()
        return self.reply is not None


@dataclass(eq=False)
class Dialer(DialerBase):
    """Opens links to one address, through ``opener``; their tasks belong to ``loop``."""

    loop: Loop
    opener: Opener

    async def dial(self, seconds: float) -> Link:
        """A link, after as many attempts as fit into ``seconds``, at least one, as the blocking ``Dialer.dial``."""
        attempts = Attempts(seconds, self.loop.now())
        while True:
            try:
                return await self.dial_once(attempts.seconds(self.loop.now()))
            except errors.NotReachableError as error:
                if is_unknown_host(error.__cause__) and not self.access.outage.has_answered:
                    raise
                delay = attempts.failed(error, self.loop.now())
            await self.loop.sleep(delay)

    async def dial_once(self, seconds: float) -> Link:
        """One attempt, at most ATTEMPT_SECONDS_MAX long. Raises NotReachableError when a retry may help."""
        began = self.loop.now()
        try:
            link = await self._dial_once(self.access.outage.attempt_seconds(seconds), seconds)
        except errors.NotReachableError as error:
            self.access.outage.failed(error, began, self.loop.now())
            raise
        self.access.outage.ended(self.loop.now())
        return link

    async def _dial_once(self, seconds: float, patience: float) -> Link:
        """As the blocking ``Dialer._dial_once``."""
        transport = await self._connected(seconds)
        try:
            with saying_hello(self.server):
                tls = await self._shake_hands(transport, seconds)
            link = Link(transport, self.server, self.loop, tls)
        except BaseException:
            transport.close()
            raise
        try:
            with saying_hello(self.server):
                if self.access.authentication is not None:
                    await link.authenticate(self.access.authentication, max(seconds, patience))
                link.hello, _ = await link.converse(ask(hello_request(self.client_id), HelloReply), seconds=seconds)
            check_cluster(self.server, self.cluster_id, link.hello)
        except BaseException:
            link.close()
            raise
        return link

    async def _shake_hands(self, transport: Transport, seconds: float) -> "TlsSession | None":
        """As the blocking ``Dialer._shake_hands``."""
        tls = self.access.tls_session()
        if tls is None:
            return None
        received = memoryview(bytearray(tls.receive_bytes))
        try:
            with self.loop.until(self.loop.now() + seconds):
                while True:
                    await _send_all(transport, tls.shake_hands())
                    if tls.is_established:
                        return tls
                    tls.received(received[: await transport.receive_into(received)])
        except errors.TlsError:
            with suppress(OSError), self.loop.until(self.loop.now() + _ALERT_SECONDS):
                await _send_all(transport, tls.alert())
            raise
        except OSError as error:
            raise broken(self.server, error) from error
        raise errors.ClientTimeoutError(f"it did not begin TLS within {seconds_of(seconds)}")

    async def _connected(self, seconds: float) -> Transport:
        error: OSError = TimeoutError("timed out")
        try:
            with self.loop.until(self.loop.now() + seconds):
                return await self.opener(self.access.address)
        except OSError as failure:
            error = failure
        raise refused(self.server, error) from error


async def _send_all(transport: Transport, data: bytes) -> None:
    unsent = Unsent([data])
    while not unsent.is_done:
        unsent.written(await transport.send_some(unsent.buffers()))
