"""Kafka's protocol on one connection: requests in their order, responses in the same order.

As in Kafka, a request is served when those before it are: one that waits, such as a long poll, holds up what follows on
its connection. Only Produce requests are served before earlier ones are answered: each is written in its turn, together
with those of other connections, and answered in order when its ack is reached. A fetch that waits has no task.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.begun_request import BEGUN_BYTES_MAX, BegunRequest
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import Api, Endpoint, RequestContext
from seglog_broker.listeners.kafka.errors import error_code
from seglog_broker.listeners.kafka.fetches import Fetches
from seglog_broker.listeners.kafka.first_bytes import answer_to_http, native_client
from seglog_broker.listeners.kafka.greeting import Greeting
from seglog_broker.listeners.kafka.handlers.produce import (
    APPENDS_AT_ONCE,
    PARTITIONS_MAX,
    Append,
    Part,
    Produce,
    encode_responses,
    partitions_of,
)
from seglog_broker.listeners.kafka.handlers.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, out_of_place
from seglog_broker.listeners.kafka.slow_requests import Responses, SlowRequests
from seglog_broker.listeners.kafka.templates import SHARED_BYTES_MAX, ProduceTemplate, Repeated, template_of
from seglog_broker.listeners.kafka.transactional_produce import admit, batches_of, must_wait
from seglog_broker.listeners.native.replies import encode_last_error
from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_broker.listeners.transport import shown_host
from seglog_broker.listeners.wire import Wire
from seglog_broker.runtime import budget
from seglog_broker.runtime.begun import Begun
from seglog_broker.runtime.lasting import Recurring
from seglog_protocol import kafka
from seglog_protocol.errors import (
    FrameTooLargeError,
    RemoteProtocolError,
    SeglogError,
    TlsRequiredError,
    WrongPortError,
)
from seglog_protocol.frame_receiver import LENGTH_SIZE, Buffer, has_own_buffer
from seglog_protocol.kafka.frames import PRODUCE, KafkaFrameReader
from seglog_protocol.kafka.structs import Request, Response

REQUEST_COST: Final = 250.0
"""Microseconds for any request but Produce, without that for what it names."""

READ_AT_ONCE_BYTES: Final = 16 * 1024
"""A larger request, if it is not to produce, is read in turns."""

LEAVES: Final = 3
"""Connections in a row on which a client asks for the versions alone, before the log has it."""

WHY_IT_LEFT: Final = "it asked for the versions of the apis and left: its own log says why, unless it probes the port"


class KafkaWire(Wire):
    """Serves the requests of one connection."""

    __deletable__ = ("_begun", "_connection", "_responses", "_fetches", "_slow")  # by ``detach``, for mypyc
    is_ordered = True

    def __init__(
        self, broker: Broker, advertised: Endpoint, native_port: int, leavers: Recurring, connection: Connection
    ) -> None:
        """``advertised`` is the address that clients of this port are to connect to, ``native_port`` seglog's own.

        ``leavers`` are clients that leave when they know the versions.
        """
        self.apis = apis.APIS
        self._broker = broker
        self._connection = connection
        memory = broker.request_memory
        self._frames = KafkaFrameReader(
            memory.request_bytes_max, receive_buffer=connection.run_of_appends.buffer, pool=memory.pool, asks=True
        )
        self.reader = self._frames
        self._headers = kafka.RequestHeaderReader()
        host = connection.transport.host
        self._session = connection.session
        self._usage = connection.usage
        self._room = broker.response_memory.room(host)
        self._advertised = advertised
        self._native_port = native_port
        self._client_address = shown_host(host)
        self._leavers = leavers
        self._software = ""  # what the client says of itself
        self._has_asked = False  # for anything but versions
        self._latest_context: RequestContext | None = None
        self._counts = connection.counts
        self._produces = connection.counts.of("Produce")
        self._size = 0  # of the latest request; 0 before the first
        self._last_words = b""  # to a client of another protocol
        self._responses = Responses(broker, connection, self._room)
        self.templates = self._responses.templates
        self._fetches = Fetches(broker, connection, self._responses)
        self._begun = BegunRequest(broker, connection)
        self._slow = SlowRequests(broker, connection, self._responses)

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits without a task."""
        return self._fetches.is_waiting or self._begun.is_waiting

    def stop(self, reason: str) -> None:
        """Answer waiting fetches at once."""
        self._responses.stop_reason = reason
        self._fetches.stop()

    def finish(self) -> Awaitable[None]:
        """Wait for the request that has begun."""
        return self._begun.finish()

    def drop(self) -> None:
        """Drop waiting fetches."""
        self._fetches.drop()
        self._begun.drop()

    def greet(self) -> Awaitable[bool] | None:
        """The authentication of the client, where its listener wants one."""
        if self._session.is_open:
            return None
        return Greeting(self._broker, self._connection, self._frames, self._native_port, self._context).greet()

    def detach(self) -> None:
        """Forget the connection, and give back the place of its response."""
        self._room.close()
        self._slow.free_decoded()
        if self._size and not self._has_asked and self._connection.is_left and self._leavers.begins(self._client):
            self._connection.log.warning("client_gives_up", client=self._software, times=LEAVES, advice=WHY_IT_LEFT)
        del self._begun, self._connection, self._responses, self._fetches, self._slow

    def last_frame(self, error: SeglogError) -> bytes:
        """None, but for a client of seglog or of HTTP: Kafka has no answer to what cannot be understood."""
        if isinstance(error, TlsRequiredError):
            first = self._connection.transport.first_bytes
            self._last_words = answer_to_http(error, first)
            error = native_client(memoryview(first)[LENGTH_SIZE:], self._native_port) or error
        return encode_last_error(error) if isinstance(error, WrongPortError) else self._last_words

    def encode_appended(self, request_ids: Sequence[Part], outcomes: Sequence[AppendOutcome], began: float) -> Buffer:
        """Replies in the order of their appends."""
        if self._usage.is_timed:
            self._usage.note_time()
        return encode_responses(request_ids, outcomes, self._produces, began)

    def note_unanswered(self, request_ids: Sequence[Part], errors: Sequence[SeglogError], began: float) -> None:
        """Count requests with acks=0; of a long one these may be some of its appends."""
        self._produces.errors.update([error_code(error).name for error in errors])
        self._produces.note_answers(sum([part.end_silently() for part in request_ids]), 0, began)

    @property
    def _client(self) -> tuple[str, str]:
        """The client, as far as ``_leavers`` tell it from others."""
        return self._client_address, self._software

    # --- Requests -----------------------------------------------------------------------------------------------------

    def serve_next(self) -> bool:
        """Serve the next request."""
        frame: memoryview | None = None
        try:
            if self._connection.waiting_request is not None:
                frame = self._connection.take_waiting()
            else:
                frame = self._frames.next_frame()
                self._connection.began = self._connection.ready.began
                if frame is not None and self._connection.faults is not None and self._connection.meets_fault(frame):
                    return True
            if frame is None:
                return False
            self._size = LENGTH_SIZE + len(frame)
            if self._connection.ready.now >= self._session.ends_at and self._is_barred(frame):
                return True
            template = self.templates.find(frame)
            if isinstance(template, ProduceTemplate):
                repeated = template.appends_of(frame)
                if repeated is not None and self._gather(repeated, frame):
                    self._produces.note_request(self._size)
                    if self._usage.is_counted:
                        self._note_produced(template.client_id)
                    return True
            elif isinstance(template, Repeated):
                if self._may_serve(frame):
                    self._serve_request(template.api, template.header_of(frame), template.request_of(frame), template)
                return True
            header = self._headers.read(frame)
            if not self._has_asked and header.api_key != apis.API_VERSIONS:
                self._has_asked = True
                if self._leavers.ends(self._client):
                    self._connection.log.info("client_goes_on", client=self._software)
            if header.api_key == PRODUCE:
                self._produces.note_request(self._size)
                if self._usage.is_counted:
                    self._note_produced(header.client_id)
                self._produce(header, frame, is_new=template is None)
            elif self._may_serve(frame):
                self._serve(header, frame)
        except kafka.UnsupportedVersion as error:
            if error.api_key != apis.API_VERSIONS:
                stranger = None if frame is None else native_client(frame, self._native_port)
                raise stranger or RemoteProtocolError(str(error)) from None
            if frame is not None and self._may_serve(frame):
                header = kafka.RequestHeader(apis.API_VERSIONS, 0, error.correlation_id, None, 0)
                counts = self._counts.of("ApiVersions")
                counts.note_request(self._size)
                self._responses.refuse(counts, header, apis.unsupported_api_versions())
        except (kafka.WireError, RemoteProtocolError) as error:
            if isinstance(error, FrameTooLargeError) and not self._size:  # it is what the client begins with
                self._last_words = answer_to_http(error)
            raise RemoteProtocolError(str(error)) from None
        except OSError:
            raise  # the connection is lost
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._responses.give_up("Kafka request", error)
        return True

    def _note_produced(self, client_id: str | None) -> None:
        self._usage.client_id = client_id
        self._usage.note_produced(self._size)

    def _is_barred(self, frame: memoryview) -> bool:
        """Whether a request was refused because the client has to authenticate again, or is about to.

        Raises RemoteProtocolError where Kafka closes the connection without a response.
        """
        header = self._headers.read(frame)
        if self._session.is_in_exchange:
            if header.api_key == SASL_AUTHENTICATE:
                return False
            counts = self._counts.of(apis.accepted(self.apis, header).name)
            counts.note_request(self._size)
            self._responses.refuse(counts, header, out_of_place(header, frame))
            self._connection.end(EndReason.PROTOCOL_ERROR)
            return True
        if header.api_key != SASL_HANDSHAKE:
            raise RemoteProtocolError("the session has ended, and the client did not authenticate again")
        return False

    def _may_serve(self, frame: memoryview) -> bool:
        """Whether a request that does not produce may be served now; if not, it is kept."""
        if self._connection.may_serve():
            return True
        self.serve_later(self.kept(frame))
        return False

    def serve_later(self, frame: memoryview) -> None:
        """Keep a request, to be served before all others."""
        self._connection.serve_later(frame, frame, len(frame))

    def kept(self, frame: memoryview) -> memoryview:
        """The frame in memory that stays as it is when the turn is over."""
        return memoryview(bytearray(frame)) if self._connection.run_of_appends.buffer.has(frame) else frame

    def _context(self, header: kafka.RequestHeader) -> RequestContext:
        latest = self._latest_context
        if latest is None or latest.client_id != header.client_id or latest.version != header.version:
            latest = self._latest_context = RequestContext(
                self._broker,
                self._advertised,
                header.version,
                header.client_id,
                self._client_address,
                self._room,
                self._session,
                self._usage,
            )
        return latest

    # --- Produce ------------------------------------------------------------------------------------------------------

    def _produce(self, header: kafka.RequestHeader, frame: memoryview, *, is_new: bool) -> None:
        """Serve a Produce request in the ordinary way; ``is_new`` if it has no template."""
        connection = self._connection
        if len(frame) > READ_AT_ONCE_BYTES and (count := partitions_of(header, frame)) > APPENDS_AT_ONCE:
            if count > PARTITIONS_MAX:
                raise RemoteProtocolError(f"a Produce request for more than {PARTITIONS_MAX} partitions")
            self._begin_produce_in_turns(header, frame)
            return
        request = kafka.read_request(header, frame)
        assert isinstance(request, kafka.messages.ProduceRequest)
        context, transactional_id = self._context(header), request.transactional_id
        is_long = sum([len(topic.partition_data) for topic in request.topic_data]) > APPENDS_AT_ONCE
        waits = is_long or must_wait(context, transactional_id, batches_of(context, request))
        if waits and (is_long or len(frame) > READ_AT_ONCE_BYTES or connection.intake.has_share):
            self._begin_produce_in_turns(header, frame)
            return
        if waits and (kept := self.kept(frame)) is not frame:
            frame, request = kept, kafka.read_request(header, kept)
            assert isinstance(request, kafka.messages.ProduceRequest)
        produce = Produce.of(context, header.correlation_id, request)
        for topic in request.topic_data:
            produce.add_topic(topic)
            produce.add(topic.partition_data)
        appends = produce.take_appends()
        if waits:
            connection.write_gathered()
            connection.spent = budget.TURN
            admission = admit(context, transactional_id, batches_of(context, request))
            self._begun.begin(admission, partial(self._append_admitted, produce, appends, frame))
            return
        if appends and self._gather(appends, frame):
            if is_new and self.templates.is_due():
                template = template_of(context, header, frame, request)
                if template is not None:
                    self.templates.add(template)
            return
        connection.write_gathered()
        self._append_alone(produce, appends, frame)

    def _append_admitted(
        self, produce: Produce, appends: Sequence[Append], frame: memoryview, begun: Begun[SeglogError | None]
    ) -> None:
        """Append what its transaction takes now, or answer with why it does not."""
        connection, refusal = self._connection, begun.result()
        if appends and refusal is not None:
            self._slow.note_refused(produce)
            connection.answer_appends([part for part, _, _ in appends], produce.ack, [refusal] * len(appends), 0)
        elif appends and self._gather(appends, frame):  # none of them is silent
            connection.write_gathered()
        else:
            self._append_alone(produce, appends, frame)

    def _append_alone(self, produce: Produce, appends: Sequence[Append], frame: memoryview) -> None:
        """Append the batches of a request that are not written with others; answer it at once if there are none."""
        self._slow.note_refused(produce)
        if appends:
            parts, requests, payloads = zip(*appends, strict=True)
            self._connection.append(parts, requests, payloads, frame)
        else:
            self._connection.spent += REQUEST_COST
            self._slow.answer_refused(produce)

    def _gather(self, appends: Sequence[Append], frame: memoryview) -> bool:
        """Have appends written together with those of other connections; False if they have to be written alone."""
        connection = self._connection
        if connection.intake.has_share and has_own_buffer(frame):
            return False
        is_plain = self._broker.is_plain
        for _, append, records in appends:
            if not is_plain(append, records):
                return False
        for part, append, records in appends:
            connection.run_of_appends.add(connection, part, append, records)
        connection.note_gathered(len(appends), len(appends), len(frame))
        return True

    def _begin_produce_in_turns(self, header: kafka.RequestHeader, frame: memoryview) -> None:
        self._connection.write_gathered()
        self._connection.spent = budget.TURN
        self._connection.job = partial(self._slow.produce, self._context(header), header, self.kept(frame))

    # --- Other requests -----------------------------------------------------------------------------------------------

    def _serve(self, header: kafka.RequestHeader, frame: memoryview) -> None:
        """Serve anything but Produce: at once if possible, else it is a job of the task."""
        api = apis.accepted(self.apis, header)
        if len(frame) > READ_AT_ONCE_BYTES:
            serve = partial(self._serve_request, api, header)
            self._connection.job = partial(self._slow.read, header, self.kept(frame), serve)
            return
        self._serve_request(api, header, kafka.read_request(header, frame))

    def _serve_request(
        self, api: Api, header: kafka.RequestHeader, request: Request, template: Repeated | None = None
    ) -> None:
        connection = self._connection
        counts = self._counts.of(api.name)
        counts.note_request(self._size)
        self._usage.client_id = header.client_id
        self._responses.begin(counts, api, request if self._size <= SHARED_BYTES_MAX else None, template)
        connection.spent += REQUEST_COST
        if isinstance(request, kafka.messages.ApiVersionsRequest):
            self._software = f"{request.client_software_name} {request.client_software_version}".strip()
        if (refusal := api.refusal_of(self._session, request)) is not None:
            connection.spent = budget.TURN
            connection.job = partial(self._slow.refuse, header, request, *refusal)
            return
        if isinstance(request, kafka.messages.FetchRequest):
            self._fetches.serve(self._context(header), header, request)
            return
        if api.handle_now is not None:
            try:
                response = api.handle_now(self._context(header), request)
                if response is not None:
                    self._responses.queue(header, response)
                    if self._session.has_failed:
                        connection.end(EndReason.AUTHENTICATION_FAILED)
                    return
            except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                self._responses.give_up(api.name, error)
                return
        connection.spent = budget.TURN
        if api.begins and self._size <= BEGUN_BYTES_MAX:
            assert api.handle is not None
            work = api.handle(self._context(header), request)
            self._begun.begin(work, partial(self._answer, api, header))
            return
        handle = self._slow.handle if not api.waits else self._slow.handle_waiting
        connection.job = partial(handle, api, self._context(header), header, request)

    def _answer(self, api: Api, header: kafka.RequestHeader, begun: Begun[Response]) -> None:
        """Queue the response to a request that began in its turn."""
        try:
            self._responses.queue(header, begun.result())
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._responses.give_up(api.name, error)
            self._responses.room.close()
