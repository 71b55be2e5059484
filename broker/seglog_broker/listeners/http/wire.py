"""HTTP/1.1 on one connection: requests for pages in their order, by the state machine of h11.

A head has a bounded size, and a request no content. Whatever is not HTTP, or not for us, is answered with the status
that says so, and ends the connection. A page that takes long is a job of the connection's task.
"""

import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import h11
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.samples import in_turns
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.http import pages
from seglog_broker.listeners.http.answers import Answer, Plain, coding_of, refusal, text
from seglog_broker.listeners.http.exposition import Exposition, format_of
from seglog_broker.listeners.http.scrapes import Scrape, Scrapes
from seglog_broker.listeners.kafka.first_bytes import native_client
from seglog_broker.listeners.native.first_bytes import hint_for
from seglog_broker.listeners.native.replies import encode_last_error
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sending import flush
from seglog_broker.listeners.wire import Wire
from seglog_broker.runtime import budget
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_broker.runtime.slow_readers import CutError
from seglog_protocol.errors import RemoteProtocolError, SeglogError, TlsRequiredError, WrongPortError
from seglog_protocol.frame_receiver import LENGTH_SIZE, Buffer, FrameReceiver
from seglog_protocol.version import VERSION

HEAD_BYTES_MAX: Final = 8192
"""Bytes of a request's line and headers together. Parsing such a head of very many headers takes 3 ms."""

REQUEST_SECONDS: Final = 10.0
"""A connection on which no whole request has come after this time, from its beginning or that of the request, ends."""

IDLE_SECONDS: Final = 120.0
"""A connection without a request for so long ends; scrapers come once a minute or more often."""

REQUEST_COST: Final = 300.0
"""Microseconds to read the head of a request, and to answer it with a small page."""

OTHER: Final = "other"
"""Stands for all paths without a page, where requests are counted."""

_REPR: Final = re.compile(r":? (?:bytearray\()?b['\"].*", re.DOTALL)
"""Python's spelling of bytes, with which h11 ends its sentences."""

_SERVER: Final = f"seglogd/{VERSION}"


class HttpWire(Wire):
    """Serves the requests of one connection."""

    def __init__(self, broker: Broker, scrapes: Scrapes, native_port: int, connection: Connection) -> None:
        """``scrapes`` has the places of pages of metrics; a seglog client that comes here is told ``native_port``."""
        self._broker = broker
        self._scrapes = scrapes
        self._native_port = native_port
        self._connection = connection
        self.is_ordered = True
        self.is_framed = False  # requests that came together wait in h11
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.reader = FrameReceiver(receive_buffer=connection.run_of_appends.buffer)
        self._refused = HTTPStatus.BAD_REQUEST
        """The status for bytes that h11 does not take."""
        self._for_stranger: bytes | None = None
        """The last bytes for a client of Kafka's wire."""
        self._waits_since = trio.current_time()
        """Since when a request is waited for, or its rest; inf while one is answered."""
        self._is_first = True
        self._is_head = False  # whether the headers alone are asked for
        self._fed = 0  # bytes, to h11, since the last request
        self._sent = 0  # bytes of the present answer
        self._began = 0.0  # to answer it, by time.perf_counter
        self._counts: ApiMetrics | None = None  # of the present page
        self._is_stopping = False

    def stop(self, reason: str) -> None:
        """The next answer is the last one."""
        del reason
        self._is_stopping = True

    def detach(self) -> None:
        """Forget the connection."""
        del self._connection

    def look(self, now: float) -> None:
        """End the connection if no whole request has come for too long."""
        if self._connection.sender.outgoing:
            return  # the peer has to read first, which is watched where it is sent
        waited = now - self._waits_since
        has_begun = bool(self._http.trailing_data[0]) or self.reader.held > 0
        if waited > (REQUEST_SECONDS if has_begun or self._is_first else IDLE_SECONDS):
            if has_begun:
                sentence = f"No whole request has come within {REQUEST_SECONDS:g} s."
                last = self._last(text(HTTPStatus.REQUEST_TIMEOUT, sentence))
                self._connection.end(EndReason.STALLED, last)
            self._connection.note_reason(EndReason.IDLE)
            self._connection.stop()

    # --- Requests -----------------------------------------------------------------------------------------------------

    def serve_next(self) -> bool:
        """Serve the next request."""
        try:
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    self._serve(event)
                    return True
                if event is not h11.NEED_DATA:
                    raise RemoteProtocolError("HTTP with something else in place of a request")
                # No more than a head at a time, so that its size is bounded before it is parsed.
                data = self.reader.take(HEAD_BYTES_MAX + 1 - len(self._http.trailing_data[0]))
                if not data:
                    return False
                if not self._http.trailing_data[0]:
                    self._waits_since = trio.current_time()
                self._fed += len(data)
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            self._refused = HTTPStatus(error.error_status_hint)
            raise self._stranger() or RemoteProtocolError(
                f"not HTTP that can be served: {_REPR.sub('', str(error))}"
            ) from None

    def _stranger(self) -> RemoteProtocolError | None:
        """The error for a client of another wire, which has begun with other bytes than HTTP; None for any other."""
        first = memoryview(self._http.trailing_data[0])
        if not self._is_first or not first or first[0] >= ord("A"):
            return None
        native = native_client(first[LENGTH_SIZE:], self._native_port, "for HTTP")
        if native is not None:
            return native
        hint = hint_for(bytes(first))
        if hint.kind != "kafka":
            return None
        self._for_stranger = hint.answer
        return RemoteProtocolError("a Kafka client on the port for HTTP: its port is in listeners")

    def _serve(self, request: h11.Request) -> None:
        connection = self._connection
        connection.spent += REQUEST_COST + len(request.headers)
        self._waits_since, self._is_first = math.inf, False
        self._is_head = request.method == b"HEAD"
        path = request.target.partition(b"?")[0].decode("latin-1")
        counts = self._counts = self._connection.counts.of(path if path in pages.PATHS else OTHER)
        unread = len(self._http.trailing_data[0])
        counts.requests += 1
        counts.request_bytes += self._fed - unread
        self._fed, self._sent, self._began = unread, 0, time.perf_counter()
        try:
            page = self._page(request)
        except pages.NotAPageError as other:
            page = other.answer
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            page = _failure(error, request)
        if isinstance(page, Answer):
            self._answer(page)
        else:
            connection.spent = budget.TURN
            connection.job = page

    def _page(self, request: h11.Request) -> Answer | Callable[[], Awaitable[None]]:
        """The answer, or what makes it in the connection's task. Raises NotAPageError."""
        if not request.http_version.startswith(b"1."):
            sentence = "This port speaks HTTP/1.1 and 1.0, no other version."
            return text(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, sentence, is_last=True)
        if request.method not in pages.METHODS:
            sentence = "There are pages to read here: use GET or HEAD."
            return text(HTTPStatus.METHOD_NOT_ALLOWED, sentence, ("Allow", "GET, HEAD"), is_last=True)
        headers = dict(request.headers)
        if headers.get(b"content-length", b"0").strip(b"0") or b"transfer-encoding" in headers:
            return text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "A request for a page has no content.", is_last=True)
        path, query = pages.path_of(request.target)
        page = pages.AT_ONCE.get(path)
        if page is not None:
            return page(self._broker)
        if path not in {pages.HEALTH, pages.METRICS}:
            return text(HTTPStatus.NOT_FOUND, f"There is no such page.\n\n{pages.INDEX}")
        refused = refusal(self._connection, request.headers)
        if refused is not None:
            return refused
        if path == pages.HEALTH:
            return partial(self._health, request)
        return partial(self._metrics, request, pages.names_of(query))

    async def _health(self, request: h11.Request) -> None:
        try:
            answer = await pages.health(self._broker)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            answer = _failure(error, request)
        self._answer(answer)

    async def _metrics(self, request: h11.Request, names: Sequence[str]) -> None:
        """Send a page of metrics as it is made: never more of it is in memory than one slice."""
        connection = self._connection
        await flush(connection.sender)
        if self._scrapes.is_full and not self._is_head:
            sentence = "So many others are asking for metrics that none can wait any more: ask again in a few seconds."
            self._answer(text(HTTPStatus.SERVICE_UNAVAILABLE, sentence, ("Retry-After", "5")))
            return
        wanted = format_of(_joined(request, b"accept"))
        coding = coding_of(_joined(request, b"accept-encoding"))
        headers = [("Content-Type", wanted.value)]
        if coding.name is not None:
            headers.append(("Content-Encoding", coding.name))
        head = self._head(HTTPStatus.OK, headers)
        if self._is_head:
            connection.sender.queue(head)
            self._end_answer()
            return
        async with self._scrapes.place() as scrape:
            connection.sender.queue(head)
            try:
                await self._send_slices(connection, scrape, Exposition(wanted), coding(), names)
            except (OSError, CutError):
                raise  # the connection is lost, or to be
            except Exception as error:  # noqa: BLE001 - logged; the page has begun, and its end is missing
                as_seglog_error(error, pages.METRICS)
                connection.end(EndReason.REQUEST_FAILED)
                return
        self._end_answer()

    async def _send_slices(
        self, connection: Connection, scrape: Scrape, exposition: Exposition, coding: Plain, names: Sequence[str]
    ) -> None:
        sender = connection.sender
        slices = self._broker.monitoring.slices(names)
        turns = in_turns(slices, lambda piece: coding.add(exposition.encode(piece)))
        while True:
            await self._scrapes.turn(connection.ready.is_busy, self._broker.offload.rest)
            parts = next(turns, None)
            if parts is None:
                break
            data = b"".join(parts)
            if data:
                sender.queue(self._encoded(h11.Data(data=data)))
                await scrape.send(partial(flush, sender))
                if connection.transport.is_peer_gone:
                    raise BrokenPipeError("the peer left amid its page")
        data = coding.end(exposition.end())
        if data:
            sender.queue(self._encoded(h11.Data(data=data)))

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _answer(self, answer: Answer) -> None:
        """Queue a whole answer to the request that was read."""
        self._connection.sender.queue(self._whole(answer))
        self._end_answer()

    def _whole(self, answer: Answer) -> bytes:
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))), *answer.headers]
        if answer.is_last:
            headers.append(("Connection", "close"))
        head = self._head(answer.status, headers)
        return head if self._is_head else head + self._encoded(h11.Data(data=answer.body))

    def _head(self, status: HTTPStatus, headers: list[tuple[str, str]]) -> bytes:
        headers += [
            ("Date", formatdate(self._broker.clock.now_ms() / 1000, usegmt=True)),
            ("Server", _SERVER),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if self._is_stopping:
            headers.append(("Connection", "close"))
        if status >= HTTPStatus.BAD_REQUEST and self._counts is not None:
            self._counts.errors[str(status.value)] += 1
        return self._encoded(h11.Response(status_code=status, headers=headers, reason=status.phrase))

    def _encoded(self, event: Any) -> bytes:
        data = self._http.send(event) or b""
        self._sent += len(data)
        return data

    def _end_answer(self) -> None:
        """The end of an answer: then the next request is read, or the connection ends."""
        connection = self._connection
        connection.sender.queue(self._encoded(h11.EndOfMessage()))
        if self._counts is not None:
            self._counts.response_bytes += self._sent
            self._counts.seconds.add(time.perf_counter() - self._began)
            self._counts = None
        self._is_head = False
        if self._http.our_state is h11.DONE:
            self._http.next_event()  # the end of the request, which has no content
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._waits_since = trio.current_time()
        else:
            connection.end(EndReason.AS_ASKED)

    def _last(self, answer: Answer) -> bytes:
        """An answer that ends the connection, where no other has begun."""
        if self._http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return b""
        return self._whole(answer._replace(is_last=True)) + self._encoded(h11.EndOfMessage())

    def last_frame(self, error: SeglogError) -> Buffer:
        """An answer with what is wrong."""
        if isinstance(error, TlsRequiredError):
            return self._last(text(HTTPStatus.BAD_REQUEST, "This port speaks HTTPS: use https:// in the URL."))
        if isinstance(error, WrongPortError):
            return encode_last_error(error)
        if self._for_stranger is not None:
            return self._for_stranger
        status = self._refused if isinstance(error, RemoteProtocolError) else HTTPStatus.SERVICE_UNAVAILABLE
        return self._last(text(status, f"{status.phrase}: {error.message}."))


def _joined(request: h11.Request, name: bytes) -> str:
    """The values of all headers of that name, which is in small letters, as one."""
    return b",".join(value for header, value in request.headers if header == name).decode("latin-1")


def _failure(error: Exception, request: h11.Request) -> Answer:
    failure = as_seglog_error(error, request.target.partition(b"?")[0].decode("latin-1"))
    return text(HTTPStatus.INTERNAL_SERVER_ERROR, failure.message)
