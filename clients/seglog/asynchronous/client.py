"""The client of the async faces: topics, offsets, and the creation of producers and consumers."""

import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from seglog.access import Access
from seglog.asynchronous.consumer import Consumer
from seglog.asynchronous.group_consumer import GroupConsumer
from seglog.asynchronous.link import Dialer, Link
from seglog.asynchronous.loop import Loop, Opener
from seglog.asynchronous.producer import Producer
from seglog.asynchronous.queue import Queue
from seglog.asynchronous.transaction import Extend, Transaction
from seglog.core.connection import Reply
from seglog.core.consumer_options import ConsumerOptions, GroupOptions
from seglog.core.conversations import Ask, Conversation, ask, converse_async
from seglog.core.dialing import CLIENT_ID, CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from seglog.core.producer import ABORT_WAIT_SECONDS
from seglog.core.producer_options import ProducerOptions
from seglog.core.queue_session import QueueOptions
from seglog.core.security import Mechanism, Secret, Tls
from seglog.core.transactions import END_SECONDS, OpenTransaction, TransactionCore, let_go
from seglog.core.users import create_user, set_password
from seglog.core.wrong_face import in_our_words, refuse_await, refuse_unopened, refuse_with
from seglog.settings import target_given
from seglog.verbs import Awaited, ClientVerbs, ExplainVerbs
from seglog_protocol import messages
from seglog_protocol.errors import ClientClosedError, ConnectionLostError, SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.scram import ITERATIONS_DEFAULT

if TYPE_CHECKING:
    import ssl

ResultT = TypeVar("ResultT")
ChildT = TypeVar("ChildT", bound=Producer | Consumer | Queue)


class Face:
    """``connect`` of a face: its clients run on loops that ``loop`` makes, and connect by ``opener``."""

    def __init__(self, loop: Callable[[], Loop], opener: Opener) -> None:
        self._loop = loop
        self._opener = opener

    @in_our_words
    def connect(
        self,
        address: str | None = None,
        *,
        user: str | None = None,
        password: str | Callable[[], str] | Secret | None = None,
        password_file: str | PathLike[str] | None = None,
        token: str | Callable[[], str] | Secret | None = None,
        mechanism: Mechanism | None = None,
        tls: "bool | str | PathLike[str] | Tls | ssl.SSLContext | None" = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        request_timeout: float = REQUEST_TIMEOUT_SECONDS,
        client_id: str = "",
        opener: Opener | None = None,
    ) -> "Client":
        """A client of the broker at ``HOST:PORT``, connected by ``async with`` within ``connect_timeout`` seconds.

        Address, TLS and account are those of ``seglog.connect``; functions that return a secret must not block for
        long.

        ``client_id`` names this program in the broker's log; ``opener`` opens connections, if given. Raises ValueError
        for an invalid address, or settings that contradict each other. Entering the block raises NotReachableError,
        TlsError, AuthenticationError, RemoteProtocolError when the server is not a seglog broker, and ClientError where
        another kind of loop runs, or none.
        """
        target = target_given(
            address,
            user=user,
            password=password,
            password_file=password_file,
            token=token,
            mechanism=mechanism,
            tls=tls,
        )
        dialer = Dialer(Access(target), client_id or CLIENT_ID, self._loop(), opener or self._opener)
        return Client(dialer, connect_timeout, request_timeout)


class Opening(Generic[ChildT]):
    """A producer or consumer to open: ``async with`` opens and closes it, ``await`` only opens it."""

    def __init__(self, opened: Callable[[], Awaitable[ChildT]]) -> None:
        self._opened = opened
        self._child: ChildT | None = None

    def __await__(self) -> Generator[Any, Any, ChildT]:
        return self._opened().__await__()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError: it is no producer or consumer yet."""
            raise AttributeError(
                f"there is no {name} yet: a producer or consumer is opened by `async with`, or by `await` and closed "
                "by `close()`"
            )

        __aiter__ = refuse_unopened
        __enter__ = __exit__ = __iter__ = refuse_with

    async def __aenter__(self) -> ChildT:
        self._child = await self._opened()
        return self._child

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._child is not None
        await self._child.__aexit__(kind, error, trace)


class Client(
    Awaited, ClientVerbs[Opening[Producer], Transaction, Opening[Consumer], Opening[GroupConsumer], Opening[Queue]]
):
    """Client of one broker, made by ``connect``, used inside its ``async with`` block by any number of tasks.

    Its own calls share one connection; every producer and consumer opens another, so that long polls, large fetches and
    acknowledgements do not block each other. The block owns the one nursery whose tasks read these connections and send
    lingering batches; leaving it closes them.
    """

    _dialer: Dialer

    def __init__(self, dialer: Dialer, connect_timeout: float, request_timeout: float) -> None:
        super().__init__()
        self._dialer = dialer
        self._loop = dialer.loop
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._link: Link | None = None  # until the block is entered
        self._dialing = self._loop.lock()
        self._is_closed = False
        self._producers: set[Producer] = set()
        self._of_transactions: dict[weakref.ref[Transaction], dict[str, Producer]] = {}
        self._consumers: set[Consumer | Queue] = set()

    def _greeted(self) -> Link:
        return self._open_link()

    async def ping(self) -> messages.HelloReply:
        """The broker's identity and health, asked over a new connection."""
        link = await self._dial()
        link.close()
        return link.hello

    @property
    def explain(self) -> "Explain":
        """Explanations of seeks, segments and configuration."""
        return Explain(self)

    # --- Reading and writing ------------------------------------------------------------------------------------------

    def _producer(self, topic: str, options: ProducerOptions) -> Opening[Producer]:
        return Opening(lambda: self._make_producer(topic, options))

    async def _make_producer(
        self,
        topic: str,
        options: ProducerOptions,
        transaction: OpenTransaction | None = None,
        admit: Extend | None = None,
    ) -> Producer:
        beginning = options.begin(topic, may_create=self.broker.auto_create_topics)
        description, epoch = await self.converse(beginning)
        link = await self._dial()
        watch = self.timestamps(topic)
        producer = Producer(self._dialer, link, description, options, epoch, watch, transaction, admit)
        self._producers.add(producer)
        producer.on_closed = lambda: self._producers.discard(producer)
        return producer

    def _transaction(self, core: TransactionCore, options: ProducerOptions) -> Transaction:
        async def make_producer(topic: str, part_of: OpenTransaction, extend: Extend) -> Producer:
            self._loop.check()
            for producer in let_go(self._of_transactions):
                producer.abort_now()  # so that a transaction object for each block leaves no connections behind
            return await self._make_producer(topic, options, part_of, extend)

        transaction = Transaction(core, self.converse, make_producer, self._loop)
        self._of_transactions[weakref.ref(transaction)] = transaction.producers
        return transaction

    def _consumer(self, topic: str, options: ConsumerOptions) -> Opening[Consumer]:
        return Opening(lambda: self._opened(topic, options))

    def _group_consumer(self, topic: str, options: GroupOptions) -> Opening[GroupConsumer]:
        return Opening(lambda: self._opened(topic, options))

    def _queue(self, options: QueueOptions) -> Opening[Queue]:
        async def opened() -> Queue:
            link, topics = await self._begun(options.begin)
            queue = Queue(self._dialer, link, options, topics, seconds=self._request_timeout)
            self._consumers.add(queue)
            queue.on_closed = lambda: self._consumers.discard(queue)
            return queue

        return Opening(opened)

    async def _begun(self, begin: Callable[[], Conversation[ResultT]]) -> tuple[Link, ResultT]:
        """A link of its own for a consumer, and what it begins with; dialed once more if it breaks at once."""

        async def begun() -> tuple[Link, ResultT]:
            link = await self._dial()
            try:
                found = await link.converse(begin(), seconds=self._request_timeout)
                self._open_link()  # the client may have been closed meanwhile
            except BaseException:
                link.close()
                raise
            return link, found

        try:
            return await begun()
        except ConnectionLostError:  # repeatable: the broker may just have restarted
            return await begun()

    async def _opened(self, topic: str, options: ConsumerOptions) -> Any:
        link, states = await self._begun(lambda: options.begin(topic))
        seconds = self._request_timeout
        if isinstance(options, GroupOptions):
            consumer: Consumer = GroupConsumer(self._dialer, link, topic, options, seconds=seconds)
        else:
            consumer = Consumer(self._dialer, link, topic, options, states, seconds=seconds)
        self._consumers.add(consumer)
        consumer.on_closed = lambda: self._consumers.discard(consumer)
        return consumer

    # --- Calls --------------------------------------------------------------------------------------------------------

    async def call(
        self,
        request: messages.Request,
        reply_type: type[messages.MessageT],
        payload: Sequence[Buffer] = (),
        *,
        is_repeatable: bool = False,
    ) -> tuple[messages.MessageT, memoryview]:
        """Send one request of any api and return its reply; repeated once after a lost connection if ``is_repeatable``.

        Raises the broker's error, ClientTimeoutError, ConnectionLostError, NotReachableError.
        """
        return await self.converse(ask(request, reply_type, payload, is_repeatable=is_repeatable))

    async def post(self, request: messages.Request, payload: Sequence[Buffer] = ()) -> None:
        """Send a request that gets no reply."""
        link = await self._usable_link()
        await link.send(request, payload, on_reply=None, seconds=self._request_timeout)

    async def converse(self, conversation: Conversation[ResultT]) -> ResultT:
        """Run a conversation; raises what ``call`` raises."""
        return await converse_async(conversation, self._answer, self._loop.sleep)

    async def _answer(self, question: Ask) -> Reply:
        request, payload, is_repeatable, _ = question
        try:
            return await (await self._usable_link()).ask(request, payload, seconds=self._request_timeout)
        except ConnectionLostError:
            if not is_repeatable:
                raise
        return await (await self._usable_link()).ask(request, payload, seconds=self._request_timeout)

    async def _usable_link(self) -> Link:
        """The link, or a new one if the old one is known to be broken."""
        for _ in range(2):  # two turns let the reading task notice a closed connection
            await self._loop.turn()
        async with self._dialing:
            link = self._open_link()
            if link.failure is not None:
                self._link = link = await self._dial()
            return link

    async def _dial(self) -> Link:
        self._open_link()
        self._loop.check()
        link = await self._dialer.dial(self._connect_timeout)
        if self._is_closed:
            link.close()
            self._open_link()
        return link

    def _open_link(self) -> Link:
        """The link, which may be broken. Raises ClientClosedError outside the block."""
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if self._link is None:
            raise ClientClosedError("the client is not connected; use it as `async with connect(...) as client:`")
        return self._link

    # --- The block ----------------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refuse_with
        __await__ = refuse_await

    async def __aenter__(self) -> Self:
        if self._link is not None or self._loop.is_open:
            raise RuntimeError("a client is used in one block only; call connect() again")
        await self._loop.open()
        try:
            self._link = await self._dialer.dial(self._connect_timeout)
        except BaseException as error:
            failure = await self._loop.end(error)
            if failure is None or failure is error:
                raise
            raise failure from error
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close producers and consumers as their own blocks would. Raises DeliveryFailed for unacknowledged records."""
        failure = error
        try:
            await self._leave(error)
        except BaseException as other:  # noqa: BLE001 - raised below, when the tasks have ended
            failure = other
        failure = await self._loop.end(failure)
        if failure is not None and failure is not error:
            raise failure

    async def close(self) -> None:
        """Abort open transactions, flush and close producers, close consumers, then the connection. Idempotent.

        Leaving the block does the same. Raises DeliveryFailed when records were not acknowledged; everything is closed
        nevertheless.
        """
        await self._loop.turn()
        await self._leave(None)

    async def _leave(self, error: BaseException | None) -> None:
        self._is_closed = True
        try:
            await self._end_transactions()
            if error is None:
                await _each([producer.close for producer in self._producers], SeglogError)
        except BaseException as other:
            error = other
            raise
        finally:
            if error is not None:
                deadline = self._loop.now() + ABORT_WAIT_SECONDS
                producers = list(self._producers)
                for producer in producers:
                    producer.end()
                for producer in producers:
                    await producer.leave(error, deadline)
            try:
                # Errors may be any of the program's own callbacks.
                await _each([consumer.leave for consumer in self._consumers], Exception)
            finally:
                assert self._link is not None
                self._link.close()

    async def _end_transactions(self) -> None:
        """Abort open transactions, all within END_SECONDS."""
        deadline = self._loop.now() + END_SECONDS
        for found in list(self._of_transactions):
            transaction = found()
            if transaction is not None and self._link is not None:
                await transaction.leave(self._link, deadline)

    # --- Accounts -----------------------------------------------------------------------------------------------------

    async def create_user(
        self, name: str, password: str | Callable[[], str] | Secret, *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Make an account, as ``seglog.Client.create_user``: that blocks for some hundredths of a second."""
        password = Secret(password)
        await self.converse(create_user(name, password, iterations))

    async def set_password(
        self, name: str, password: str | Callable[[], str] | Secret, *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Give an account another password, as ``create_user``. Raises UnknownUserError, AuthorizationError."""
        password = Secret(password)
        await self.converse(set_password(name, password, iterations))


async def _each(closings: Iterable[Callable[[], Awaitable[None]]], kind: type[Exception]) -> None:
    """Call each; an error of this ``kind`` does not keep the others from it, and the first one is raised then."""
    first: Exception | None = None
    for close in closings:
        try:
            await close()
        except kind as error:
            first = first or error
    if first is not None:
        raise first


class Explain(Awaited, ExplainVerbs):
    """``client.explain``: explanations from the broker."""
