"""Links: one socket and its Connection, shared by any number of threads; and how a link is opened, with retries.

There is no background thread. The first waiting thread reads for all and passes every reply to the handler given with
its request; when it has its own reply, the next waiting thread reads on. Writing has a lock of its own, so that a large
request does not delay the reading of replies.

The socket is non-blocking; threads wait in ``poll``, which may be interrupted at any time. An interrupt (or any other
exception) during a read or write closes the link, because a half-written frame or a lost piece of a reply would corrupt
the stream.
"""

import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from seglog.access import DialerBase, Handler, LinkBase
from seglog.core.authentication import Authentication, lasting
from seglog.core.connection import STALLED_SECONDS, Reply, Unsent
from seglog.core.conversations import Conversation, converse
from seglog.core.dialing import broken, check_cluster, hello_request, is_unknown_host, refused, saying_hello
from seglog.core.errors import copied, seconds_of
from seglog.core.retries import Attempts
from seglog_protocol import errors
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.messages import HelloReply, MessageT, Request, decode_reply

if TYPE_CHECKING:
    from seglog.core.tls import TlsSession

ResultT = TypeVar("ResultT")

SLICE_SECONDS: Final = 0.25
"""How often a wait for a reply looks whether it is to end early."""


class OwnerProcess:
    """The process that made an object with a socket.

    After a fork both processes have the same connection. Two readers of one socket would take each other's replies, and
    a lock held by another thread during the fork is never released in the child; so the child may only close its copy.
    """

    running = os.getpid()
    """The process that runs: asked for after each fork, because before each record it would cost half of one."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.process = OwnerProcess.running

    @property
    def is_here(self) -> bool:
        """Whether this is that process, not a forked child."""
        return self.process == OwnerProcess.running

    def check(self) -> None:
        """Raises ClientError in a forked child."""
        if self.process != OwnerProcess.running:
            raise errors.ClientError(
                f"this {self._what} belongs to process {self.process} and cannot be used after a fork in process "
                f"{OwnerProcess.running}; call seglog.connect() again in the child"
            )


os.register_at_fork(after_in_child=lambda: setattr(OwnerProcess, "running", os.getpid()))


class Link(LinkBase):
    """Owns a connected socket; ``close`` closes it."""

    def __init__(self, connected: socket.socket, server: str, tls: "TlsSession | None" = None) -> None:
        super().__init__(server, tls)
        connected.setblocking(False)
        self._renewing = threading.Lock()
        self._socket = connected
        self.owner = OwnerProcess("connection")
        self._write_lock = threading.Lock()
        # The lock is used directly: an interrupt may leave the condition's own methods with the lock held.
        self._lock = threading.Lock()  # guards the connection, the handlers, and the following fields
        self._changed = threading.Condition(self._lock)
        self._is_reading = False
        self._failure: errors.SeglogError | None = None

    # --- Who the client is --------------------------------------------------------------------------------------------

    def authenticate(self, authentication: Authentication, timeout: float) -> None:
        """Prove who the client is, now, and again before the session ends. Raises AuthenticationError."""
        began = lasting()
        try:
            session = self.converse(authentication.exchange(), timeout=timeout)
        except errors.SeglogError as error:
            error.__traceback__ = error.__context__ = None  # the frames that sent what is secret
            raise
        self._authenticated(authentication, session, began)

    def _renew(self, timeout: float) -> None:
        """Renew the session if it ends soon; other threads that are about to send wait for that."""
        if self._renewer == threading.get_ident():
            return  # its requests are the renewal
        with self._renewing:
            if not self._is_session_over():
                return
            assert self._authentication is not None
            self._renewer = threading.get_ident()
            try:
                self.authenticate(self._authentication, timeout)
            except errors.AuthenticationError as error:
                self.fail(error)
                raise
            finally:
                self._renewer = None

    # --- Asking -------------------------------------------------------------------------------------------------------

    def call(
        self, request: Request, reply_type: type[MessageT], payload: Sequence[Buffer] = (), *, timeout: float
    ) -> tuple[MessageT, memoryview]:
        """Send a request and wait for its reply and the reply's payload.

        Raises the broker's error; ClientTimeoutError after ``timeout`` seconds, with the link still usable;
        ConnectionLostError when the connection breaks.
        """
        reply = self.ask(request, payload, timeout=timeout)
        return decode_reply(reply.header, reply_type), reply.payload

    def ask(
        self,
        request: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout: float,
        sleep: Callable[[float], None] | None = None,
    ) -> Reply:
        """Send a request and wait for its reply, which may hold an error; otherwise raises what ``call`` raises.

        ``sleep`` is called with 0 every quarter of a second, and may raise to end the wait.
        """
        arrived: list[Reply] = []
        deadline = time.monotonic() + timeout
        slice_seconds = math.inf if sleep is None else SLICE_SECONDS
        request_id = self.send(request, payload, on_reply=arrived.append, timeout=timeout)
        try:
            while not self.wait(lambda: bool(arrived), min(slice_seconds, deadline - time.monotonic())):
                if sleep is None or time.monotonic() >= deadline:
                    raise errors.ClientTimeoutError(
                        f"{self.server} did not answer {request.api} within {seconds_of(timeout)}"
                    )
                sleep(0)
        finally:
            self.abandon(request_id)
        return arrived[0]

    def converse(self, conversation: Conversation[ResultT], *, timeout: float) -> ResultT:
        """Run a conversation; each of its requests may take ``timeout`` seconds. Raises what ``call`` raises."""
        return converse(conversation, lambda question: self.ask(question.request, question.payload, timeout=timeout))

    def send(
        self,
        request: Request,
        payload: Sequence[Buffer] = (),
        *,
        on_reply: Handler | None,
        timeout: float,
        on_stalled: Callable[[], bool] | None = None,
    ) -> int:
        """Write a request and return its id without waiting for a reply; ``on_reply`` None: there is no reply.

        Raises ClientTimeoutError when it is not written within ``timeout`` seconds; the link stays usable only if no
        byte of the request was written. While the broker takes no bytes, ``on_stalled`` is called every half second;
        when it returns False, the write times out.
        """
        self.owner.check()
        if self._is_session_over():
            self._renew(timeout)
        with self._write_lock:
            with self._lock:
                self._raise_failure()
                request_id, buffers = self._connection.send(request, payload, is_answered=on_reply is not None)
                if on_reply is not None:
                    self._handlers[request_id] = on_reply
            try:
                self._write(buffers, time.monotonic() + timeout, on_stalled)
            except BaseException:
                self.abandon(request_id)
                raise
        return request_id

    def abandon(self, request_id: int) -> None:
        """Drop this reply when it arrives; a no-op when it has arrived."""
        with self._lock:
            self._handlers.pop(request_id, None)
            self._connection.abandon(request_id)

    # --- Waiting ------------------------------------------------------------------------------------------------------

    def wait(self, is_done: Callable[[], bool], timeout: float) -> bool:
        """Read until ``is_done()``; False when ``timeout`` seconds pass first.

        ``is_done`` is called after every read, under this link's lock, and must not block. Replies that have already
        arrived are processed even after the timeout. Raises what broke the link, but only when ``is_done()`` is still
        false.
        """
        self.owner.check()
        deadline = time.monotonic() + timeout
        while True:
            is_mine = False
            try:
                with self._lock:
                    if not self._wait_for_reader(is_done, deadline):
                        return False
                    if is_done():
                        return True
                    self._raise_failure()
                    is_mine = self._is_reading = True
                arrived = self._read(deadline)
            finally:
                if is_mine:
                    self._is_reading = False
                    self.wake()
            if not arrived:
                return is_done()

    # From Python 3.12 on an interrupt at the end of a loop may pass by the ``try`` and ``with`` around it. Such a loop
    # is a function of its own: what is around a call always holds.

    def _wait_for_reader(self, is_done: Callable[[], bool], deadline: float) -> bool:
        """With the lock, wait while another thread reads; False when the deadline passes first."""
        while not is_done() and self._failure is None and self._is_reading:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._changed.wait(remaining)
        return True

    def wake(self) -> None:
        """Make every waiting thread except the one in ``poll`` call its ``is_done`` again."""
        with self._lock:
            self._changed.notify_all()

    def is_usable(self) -> bool:
        """Whether the connection is not known to be broken; processes replies that have arrived."""
        if not self.owner.is_here:
            return False
        try:
            self.wait(lambda: False, 0)
        except errors.SeglogError:
            return False
        return self._failure is None

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the socket; waiting calls raise ClientClosedError. In a forked child only its copy is closed."""
        if self.owner.is_here:
            self.fail(errors.ClientClosedError("the connection was closed"))
        self._socket.close()

    def fail(self, error: errors.SeglogError) -> None:
        """Break the link with this error; only the first call counts."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            self._handlers.clear()
            self._changed.notify_all()
        if self.tls is not None and self._write_lock.acquire(blocking=False):  # else a frame is cut off anyway
            try:
                with suppress(OSError):
                    self._socket.send(self.tls.farewell())
            finally:
                self._write_lock.release()
        with suppress(OSError):  # the peer may have closed it already
            # Not close: another thread may be in poll with this descriptor, and numbers are reused.
            self._socket.shutdown(socket.SHUT_RDWR)

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:
            raise copied(failure) from failure

    @contextmanager
    def _in_motion(self) -> Iterator[None]:
        """For every step that would corrupt the stream if interrupted: an exception breaks the link."""
        try:
            yield
        except OSError as error:
            self._broken(error)
        except errors.SeglogError as error:
            self.fail(error)
            self._raise_failure()
        except BaseException as error:
            self._interrupted(error)
            raise

    def _broken(self, error: OSError) -> None:
        self.fail(broken(self.server, error))
        self._raise_failure()  # possibly an older one: closing the link breaks the calls of other threads

    def _interrupted(self, error: BaseException) -> None:
        self.fail(
            errors.ConnectionLostError(f"the connection to {self.server} was closed by {error!r}", server=self.server)
        )

    # --- Bytes --------------------------------------------------------------------------------------------------------

    def _write(self, buffers: Sequence[Buffer], deadline: float, on_stalled: Callable[[], bool] | None) -> None:
        unsent = Unsent(buffers)
        try:
            if self.tls is not None:
                unsent.is_moving = True
                unsent = Unsent(self.tls.seal(buffers))
                unsent.is_started = True  # what is sealed later can be opened only behind it
            self._write_until(unsent, deadline, on_stalled)
        except OSError as error:
            self._broken(error)
        except BaseException as error:
            if unsent.is_moving or unsent.is_started:
                self._interrupted(error)
            raise
        if not unsent.is_done:
            late = errors.ClientTimeoutError(f"{self.server} took no more bytes in the time given")
            if unsent.is_started:
                self.fail(errors.ConnectionLostError(late.message, server=self.server))
            raise late

    def _write_until(self, unsent: Unsent, deadline: float, on_stalled: Callable[[], bool] | None) -> None:
        while not unsent.is_done:
            unsent.is_moving = True
            try:
                unsent.written(self._socket.sendmsg(unsent.buffers()))
                continue
            except (BlockingIOError, InterruptedError):
                unsent.is_moving = False
            if self._poll(select.POLLOUT, min(deadline, time.monotonic() + STALLED_SECONDS)):
                continue
            if time.monotonic() >= deadline or (on_stalled is not None and not on_stalled()):
                break

    def _poll(self, event: int, deadline: float) -> bool:
        """Whether the socket is ready before the deadline; polls once even when that has passed."""
        poll = select.poll()
        try:
            poll.register(self._socket, event)
        except ValueError:  # closed by another thread
            return True
        remaining = deadline - time.monotonic()
        return bool(poll.poll(max(0, min(remaining, 86_400.0)) * 1000))

    def _read(self, deadline: float) -> bool:
        """Receive once and pass on whole replies; False when nothing arrived before the deadline."""
        has_ended = self.tls is not None and self.tls.is_ended
        if not has_ended and not self._poll(select.POLLIN, deadline):
            return False
        with self._in_motion():
            try:
                replies = self._receive() if self.tls is None else self._open(self.tls)
            except (BlockingIOError, InterruptedError):
                return True
            for handler, reply in replies:
                handler(reply)
        return True

    def _receive(self) -> list[tuple[Handler, Reply]]:
        size = self._socket.recv_into(self._connection.get_buffer())
        if size == 0:
            raise self._connection.receive_end()
        with self._lock:  # send and abandon change the ids that the connection expects
            return list(self._received(size))

    def _open(self, tls: "TlsSession") -> list[tuple[Handler, Reply]]:
        """As ``_receive``, with all that has come: ``poll`` does not see what is decrypted."""
        if tls.is_ended:
            raise self._connection.receive_end()
        tls.received(self._socket.recv(tls.receive_bytes))
        replies: list[tuple[Handler, Reply]] = []
        while size := tls.open_into(self._connection.get_buffer()):
            with self._lock:
                replies += self._received(size)
        return replies


class Dialer(DialerBase):
    """Opens links to one address."""

    def dial(self, timeout: float, sleep: Callable[[float], None] = time.sleep) -> Link:
        """A link, after as many attempts as fit into ``timeout`` seconds, at least one.

        Raises NotReachableError when none succeeds. Errors that waiting cannot fix are raised at once, for example when
        the server is not a seglog broker, or the host does not exist and has never answered before. ``sleep`` may raise
        to end the attempts.
        """
        attempts = Attempts(timeout, time.monotonic())
        while True:
            try:
                return self.dial_once(attempts.seconds(time.monotonic()))
            except errors.NotReachableError as error:
                if is_unknown_host(error.__cause__) and not self.access.outage.has_answered:
                    raise
                delay = attempts.failed(error, time.monotonic())
            sleep(delay)

    def dial_once(self, timeout: float) -> Link:
        """One attempt, at most ATTEMPT_SECONDS_MAX long. Raises NotReachableError when a retry may help."""
        began = time.monotonic()
        try:
            link = self._dial_once(self.access.outage.attempt_seconds(timeout), timeout)
        except errors.NotReachableError as error:
            self.access.outage.failed(error, began, time.monotonic())
            raise
        self.access.outage.ended(time.monotonic())
        return link

    def connect(self, timeout: float) -> socket.socket:
        """A connected socket. Raises OSError."""
        return socket.create_connection(self.access.address, timeout)

    def _dial_once(self, timeout: float, patience: float) -> Link:
        """``patience`` is for proving who the client is: the broker may take its time, above all for a refusal."""
        try:
            connected = self.connect(timeout)
        except OSError as error:
            raise refused(self.server, error) from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with saying_hello(self.server):
                link = Link(connected, self.server, self._shake_hands(connected, timeout))
                if self.access.authentication is not None:
                    link.authenticate(self.access.authentication, max(timeout, patience))
                link.hello, _ = link.call(hello_request(self.client_id), HelloReply, timeout=timeout)
            check_cluster(self.server, self.cluster_id, link.hello)
        except BaseException:
            connected.close()
            raise
        return link

    def _shake_hands(self, connected: socket.socket, timeout: float) -> "TlsSession | None":
        """TLS that is established, None without; raises TlsError where it cannot be, or what ``Link.call`` raises."""
        tls = self.access.tls_session()
        if tls is None:
            return None
        deadline = time.monotonic() + timeout
        try:
            while True:
                connected.sendall(tls.shake_hands())
                if tls.is_established:
                    return tls
                connected.settimeout(max(0.001, deadline - time.monotonic()))
                tls.received(connected.recv(tls.receive_bytes))
        except errors.TlsError:
            with suppress(OSError):
                connected.sendall(tls.alert())
            raise
        except TimeoutError as error:
            raise errors.ClientTimeoutError(f"it did not begin TLS within {seconds_of(timeout)}") from error
        except OSError as error:
            raise broken(self.server, error) from error
