"""The client of the async faces: topics, offsets, and the creation of producers and consumers."""

import warnings
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, overload

from seglog.access import Access
from seglog.asynchronous.consumer import Consumer
from seglog.asynchronous.group_consumer import GroupConsumer
from seglog.asynchronous.link import Dialer, Link
from seglog.asynchronous.loop import Loop, Opener
from seglog.asynchronous.producer import Producer
from seglog.asynchronous.transaction import Extend, Transaction
from seglog.core import topics
from seglog.core.connection import Reply
from seglog.core.consumer_options import GroupOptions, consumer_options, group_options
from seglog.core.conversations import Ask, Conversation, ask, converse_async
from seglog.core.dialing import CLIENT_ID
from seglog.core.explaining import PartitionExplanation, explain_config, explain_seek, explain_segments
from seglog.core.fetcher import OutOfRange, PartitionPosition
from seglog.core.kafka_words import in_our_words
from seglog.core.moments import Moment
from seglog.core.offsets import PartitionLag, PartitionOffsets, Place, look_up_lag, offsets_at
from seglog.core.producer import ABORT_WAIT_SECONDS
from seglog.core.producer_options import ProducerOptions
from seglog.core.records import ConsumerGap
from seglog.core.samples import read_samples
from seglog.core.security import Secret, Target
from seglog.core.timestamps import TimestampWatch
from seglog.core.transaction_admin import abort_transaction, describe_transaction, list_transactions
from seglog.core.transactions import END_SECONDS, TIMEOUT_SECONDS, OpenTransaction, TransactionCore, let_go
from seglog.core.users import create_user, delete_user, list_users, set_password
from seglog.core.wrong_face import refuse_await, refuse_unopened, refuse_with
from seglog.groups import (
    GroupDescription,
    GroupOffset,
    GroupTopics,
    OffsetReset,
    Shift,
    delete_group,
    delete_group_offsets,
    delete_groups,
    describe_group,
    group_offsets,
    list_groups,
    reset_group,
)
from seglog_protocol import messages
from seglog_protocol.errors import ClientClosedError, ConnectionLostError, SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation
from seglog_protocol.scram import ITERATIONS_DEFAULT

ResultT = TypeVar("ResultT")
ChildT = TypeVar("ChildT", bound=Producer | Consumer)


def client_of(
    target: Target,
    loop: Loop,
    opener: Opener,
    *,
    connect_timeout: float,
    request_timeout: float,
    client_id: str,
) -> "Client":
    """What ``connect`` of a face returns: the client on its ``loop``, whose connections ``opener`` opens."""
    dialer = Dialer(target.address, client_id or CLIENT_ID, loop, opener, access=Access(target))
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child is not None
        await self._child.__aexit__(kind, error, trace)


class Client:
    """Client of one broker, made by ``connect``, used inside its ``async with`` block by any number of tasks.

    Its own calls share one connection; every producer and consumer opens another, so that long polls, large fetches and
    acknowledgements do not block each other. The block owns the one nursery whose tasks read these connections and send
    lingering batches; leaving it closes them.
    """

    def __init__(self, dialer: Dialer, connect_timeout: float, request_timeout: float) -> None:
        self._dialer = dialer
        self._loop = dialer.loop
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._link: Link | None = None  # until the block is entered
        self._dialing = self._loop.lock()
        self._is_closed = False
        self._producers: set[Producer] = set()
        self._of_transactions: dict[weakref.ref[Transaction], dict[str, Producer]] = {}
        self._timestamps: dict[str, TimestampWatch] = {}
        self._consumers: set[Consumer] = set()

    @property
    def server(self) -> str:
        """HOST:PORT of the broker."""
        return self._dialer.server

    @property
    def principal(self) -> str:
        """Whom the broker takes this program for, as ``seglog.Client.principal``."""
        return self._open_link().hello.principal or ""

    @property
    def tls_version(self) -> str:
        """As ``TLSv1.3``; "" without TLS."""
        tls = self._open_link().tls
        return "" if tls is None else tls.version

    @property
    def broker(self) -> messages.HelloReply:
        """The broker's ``hello`` reply when the connection was opened."""
        return self._open_link().hello

    async def ping(self) -> messages.HelloReply:
        """The broker's identity and health, asked over a new connection."""
        link = await self._dial()
        link.close()
        return link.hello

    # --- Topics -------------------------------------------------------------------------------------------------------

    @in_our_words
    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, messages.ConfigValue] | None = None,
        *,
        exist_ok: bool = False,
    ) -> messages.CreateTopicReply:
        """Create a topic, as ``seglog.Client.create_topic``."""
        return await self.converse(topics.create_topic(name, partitions, config, exist_ok=exist_ok))

    async def alter_topic(
        self,
        name: str,
        config: Mapping[str, messages.ConfigValue] | None = None,
        *,
        reset: Sequence[str] = (),
        partitions: int | None = None,
    ) -> messages.AlterTopicReply:
        """Change a topic's configuration and number of partitions, as ``seglog.Client.alter_topic``."""
        return await self.converse(topics.alter_topic(name, config, reset, partitions))

    async def truncate_topic(self, name: str, before: Mapping[int, int | None]) -> dict[int, int]:
        """Delete the records below an offset of each partition, as ``seglog.Client.truncate_topic``."""
        return await self.converse(topics.truncate_topic(name, before))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its data, as ``seglog.Client.delete_topic``."""
        await self.converse(topics.delete_topic(name))

    async def topics(self) -> list[messages.TopicDescription]:
        """All topics, by name; without their configuration."""
        return await self.converse(topics.list_topics())

    async def describe_topic(self, name: str) -> messages.TopicDescription:
        """One topic with every configuration value and its origin. Raises UnknownTopicError, with the nearest name."""
        return await self.converse(topics.describe_topic(name))

    # --- Offsets ------------------------------------------------------------------------------------------------------

    async def offsets(
        self,
        topic: str,
        at: str | datetime | Moment | None = None,
        *,
        partitions: Sequence[int] | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
    ) -> list[PartitionOffsets]:
        """The ends of every partition, and its first record at or after ``at``, as ``seglog.Client.offsets``."""
        return await self.converse(offsets_at(topic, at, partitions, isolation))

    async def lag(
        self,
        topic: str,
        positions: Mapping[int, int] | Mapping[str, int],
        *,
        isolation: Isolation = READ_UNCOMMITTED,
    ) -> dict[int, PartitionLag]:
        """How far positions are behind, as ``seglog.Client.lag``."""
        return await self.converse(look_up_lag(topic, positions, isolation=isolation))

    @property
    def explain(self) -> "Explain":
        """Explanations of seeks, segments and configuration."""
        return Explain(self)

    async def metrics(self) -> dict[str, float]:
        """The broker's counters since its start, by name. Deprecated, as ``seglog.Client.metrics``."""
        warnings.warn("metrics() goes with the next release: use samples()", DeprecationWarning, stacklevel=2)
        return (await self.call(messages.MetricsRequest(), messages.MetricsReply, is_repeatable=True))[0].metrics

    async def samples(self, families: Sequence[str] = ()) -> list[messages.MetricFamily]:
        """As ``seglog.Client.samples``."""
        return await self.converse(read_samples(families))

    async def describe_broker(self) -> messages.DescribeBrokerReply:
        """As ``seglog.Client.describe_broker``."""
        request = messages.DescribeBrokerRequest()
        return (await self.call(request, messages.DescribeBrokerReply, is_repeatable=True))[0]

    # --- Reading and writing ------------------------------------------------------------------------------------------

    @in_our_words
    def producer(
        self,
        topic: str,
        *,
        ack: messages.Ack = "disk",
        linger_ms: float = 5,
        batch_bytes: int = 64 * 1024,
        compression: str = "none",
        compression_level: int | None = None,
        buffer_bytes: int = 32 * 1024 * 1024,
        delivery_timeout: float = 120.0,
        idempotent: bool = True,
    ) -> Opening[Producer]:
        """A producer for ``topic``, for ``async with``; options as of ``seglog.Client.producer``.

        Raises UnknownTopicError on opening.
        """
        options = ProducerOptions(
            ack, linger_ms, batch_bytes, compression, compression_level, buffer_bytes, delivery_timeout, idempotent
        )

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

    @in_our_words
    def transaction(
        self,
        transactional_id: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        linger_ms: float = 5,
        batch_bytes: int = 64 * 1024,
        compression: str = "none",
        compression_level: int | None = None,
        buffer_bytes: int = 32 * 1024 * 1024,
    ) -> Transaction:
        """Transactions of the producer with this id, for ``async with``, as ``seglog.Client.transaction``."""
        core = TransactionCore(transactional_id, timeout)
        options = ProducerOptions.of_transaction(
            timeout, linger_ms, batch_bytes, compression, compression_level, buffer_bytes
        )

        async def make_producer(topic: str, part_of: OpenTransaction, extend: Extend) -> Producer:
            self._loop.check()
            for producer in let_go(self._of_transactions):
                producer.abort_now()  # so that a transaction object for each block leaves no connections behind
            return await self._make_producer(topic, options, part_of, extend)

        transaction = Transaction(core, self.converse, make_producer, self._loop)
        self._of_transactions[weakref.ref(transaction)] = transaction.producers
        return transaction

    def timestamps(self, topic: str) -> TimestampWatch:
        """The timestamp checks of a topic; their warnings are issued once per client."""
        return self._timestamps.setdefault(topic, TimestampWatch(topic))

    @overload
    def consumer(
        self,
        topic: str,
        *,
        group: None = None,
        partitions: Sequence[int] | None = None,
        start: Place | None = None,
        until: Place | None = None,
        follow: bool = False,
        durable_only: bool = False,
        isolation: Isolation = READ_UNCOMMITTED,
        on_out_of_range: OutOfRange = "error",
        on_gap: Callable[[ConsumerGap], None] | None = None,
        reconnect_timeout: float = 120.0,
        **limits: Any,
    ) -> Opening[Consumer]: ...

    @overload
    def consumer(
        self,
        topic: str,
        *,
        group: str,
        start: Place | None = None,
        until: Place | None = None,
        follow: bool = True,
        durable_only: bool = False,
        isolation: Isolation = READ_UNCOMMITTED,
        auto_commit: bool = True,
        auto_commit_interval: float = 5.0,
        on_assigned: Callable[[list[int]], object] | None = None,
        on_revoked: Callable[[list[int], bool], object] | None = None,
        on_gap: Callable[[ConsumerGap], None] | None = None,
        instance_id: str | None = None,
        session_timeout: float = 45.0,
        max_poll_interval: float = 300.0,
        assignors: Sequence[str] = ("range", "roundrobin"),
        reconnect_timeout: float = 120.0,
        **limits: Any,
    ) -> Opening[GroupConsumer]: ...

    def consumer(self, topic: str, *, group: str | None = None, **more: Any) -> Opening[Any]:
        """A consumer of ``topic``, for ``async with``; options as of ``seglog.Client.consumer``.

        Callbacks may be async for a consumer in a group, and are called by the task that reads.
        """
        options = consumer_options(more) if group is None else group_options(group, self._dialer.client_id, more)

        async def begun() -> tuple[Link, list[PartitionPosition]]:
            link = await self._dial()
            try:
                states = await link.converse(options.begin(topic), seconds=self._request_timeout)
                self._open_link()  # the client may have been closed meanwhile
            except BaseException:
                link.close()
                raise
            return link, states

        async def opened() -> Consumer:
            try:
                link, states = await begun()
            except ConnectionLostError:  # repeatable: the broker may just have restarted
                link, states = await begun()
            seconds = self._request_timeout
            if isinstance(options, GroupOptions):
                consumer: Consumer = GroupConsumer(self._dialer, link, topic, options, seconds=seconds)
            else:
                consumer = Consumer(self._dialer, link, topic, options, states, seconds=seconds)
            self._consumers.add(consumer)
            consumer.on_closed = lambda: self._consumers.discard(consumer)
            return consumer

        return Opening(opened)

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
                await self._close_producers()
        except BaseException as other:
            error = other
            raise
        finally:
            if error is not None:
                await self._abort_producers(error)
            try:
                await self._leave_consumers()
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

    async def _leave_consumers(self) -> None:
        first: Exception | None = None
        for consumer in list(self._consumers):
            try:
                await consumer.leave()
            except Exception as error:  # noqa: BLE001 - of the program's own callbacks; the others are closed, too
                first = first or error
        if first is not None:
            raise first

    async def _close_producers(self) -> None:
        first: SeglogError | None = None
        for producer in list(self._producers):
            try:
                await producer.close()
            except SeglogError as error:
                first = first or error
        if first is not None:
            raise first

    async def _abort_producers(self, error: BaseException) -> None:
        deadline = self._loop.now() + ABORT_WAIT_SECONDS
        producers = list(self._producers)
        for producer in producers:
            producer.end()
        for producer in producers:
            await producer.leave(error, deadline)

    # --- Accounts -----------------------------------------------------------------------------------------------------

    async def users(self, names: Sequence[str] | None = None) -> list[messages.UserDescription]:
        """The accounts called ``names``, or all, as ``seglog.Client.users``."""
        return await self.converse(list_users(names))

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

    async def delete_user(self, name: str) -> None:
        """Delete an account. Raises UnknownUserError, AuthorizationError."""
        await self.converse(delete_user(name))

    # --- Groups -------------------------------------------------------------------------------------------------------

    async def groups(self) -> list[messages.ListedGroup]:
        """All consumer groups, by name: their state, and when what they committed expires."""
        return (await self.converse(list_groups()))[0]

    async def describe_group(self, name: str) -> GroupDescription:
        """A group with its members, what it committed, and how far that is behind. Raises UnknownGroupError."""
        return await self.converse(describe_group(name))

    async def group_offsets(self, name: str) -> list[GroupOffset]:
        """The committed offsets of a group and its lag, by topic and partition; empty for an unknown group."""
        return await self.converse(group_offsets(name))

    async def reset_group(
        self,
        name: str,
        to: int | str | datetime | Moment | Shift,
        topics: GroupTopics | None = None,
        *,
        dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Commit other offsets for a group without members, as ``seglog.Client.reset_group``."""
        return await self.converse(reset_group(name, to, topics, dry_run=dry_run))

    async def delete_group(self, name: str) -> None:
        """Delete a group and its offsets. Raises UnknownGroupError, NonEmptyGroupError while it has members."""
        await self.converse(delete_group(name))

    async def delete_groups(self, names: Sequence[str]) -> list[messages.DeletedGroup]:
        """As ``delete_group``, for several: one result for each, with its error if it was not deleted."""
        return await self.converse(delete_groups(names))

    async def delete_group_offsets(self, name: str, topics: GroupTopics) -> list[tuple[str, int]]:
        """Delete the committed offsets of topics, as ``seglog.Client.delete_group_offsets``."""
        return await self.converse(delete_group_offsets(name, topics))

    # --- Transactions of any producer ---------------------------------------------------------------------------------

    async def transactions(self) -> list[messages.TransactionDescription]:
        """As ``seglog.Client.transactions``."""
        return (await self.converse(list_transactions())).whole()

    async def describe_transaction(self, transactional_id: str) -> messages.TransactionDescription:
        """As ``seglog.Client.describe_transaction``."""
        return (await self.converse(describe_transaction(transactional_id)))[0]

    async def abort_transaction(self, transactional_id: str) -> None:
        """As ``seglog.Client.abort_transaction``."""
        await self.converse(abort_transaction(transactional_id))


class Explain:
    """``client.explain``: explanations from the broker."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def seek(self, topic: str, partition: int, at: int | str | datetime | Moment) -> messages.ExplainReply:
        """How a fetch from ``at``, an offset or a time, finds its position: the trace of a seek made for this call."""
        return await self._client.converse(explain_seek(topic, partition, at))

    async def segments(self, topic: str, partition: int, *, drops: bool = False) -> PartitionExplanation:
        """Why each segment of a partition is kept, and when it can be deleted.

        What compaction would drop is included where computing it is cheap, and always with ``drops``.
        """
        return await self._client.converse(explain_segments(topic, partition, drops=drops))

    async def config(self, topic: str) -> dict[str, messages.ConfigEntry]:
        """Every effective configuration value of a topic, and its origin."""
        return await self._client.converse(explain_config(topic))
