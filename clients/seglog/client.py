"""The blocking client: topics, offsets, and the creation of producers and consumers."""

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from seglog.access import Access
from seglog.core import topics
from seglog.core.connection import Reply
from seglog.core.conversations import Ask, Conversation, ask, converse
from seglog.core.dialing import CLIENT_ID, CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from seglog.core.kafka_words import in_our_words
from seglog.core.security import Secret
from seglog.core.wrong_face import refuse_async_block
from seglog.link import Dialer, Link, OwnerProcess
from seglog.settings import target_given
from seglog_protocol import messages
from seglog_protocol.errors import ClientClosedError, ConnectionLostError, SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.scram import ITERATIONS_DEFAULT

if TYPE_CHECKING:
    import ssl
    from datetime import datetime
    from os import PathLike

    from seglog.consumer import Consumer
    from seglog.core.explaining import PartitionExplanation
    from seglog.core.fetcher import OutOfRange
    from seglog.core.moments import Moment
    from seglog.core.offsets import PartitionLag, PartitionOffsets, Place
    from seglog.core.producer_options import ProducerOptions
    from seglog.core.records import ConsumerGap
    from seglog.core.security import Mechanism, Tls
    from seglog.core.timestamps import TimestampWatch
    from seglog.core.transactions import OpenTransaction
    from seglog.group_consumer import GroupConsumer
    from seglog.groups import GroupDescription, GroupOffset, GroupTopics, OffsetReset, Shift
    from seglog.producer import Producer
    from seglog.transaction import Extend, Transaction
    from seglog_protocol.isolation import Isolation
    from seglog_protocol.messages import Ack, DeletedGroup, ListedGroup, TransactionDescription

ResultT = TypeVar("ResultT")
ChildT = TypeVar("ChildT", bound="Producer | Consumer")


@in_our_words
def connect(
    address: str | None = None,
    *,
    user: str | None = None,
    password: "str | Callable[[], str] | Secret | None" = None,
    password_file: "str | PathLike[str] | None" = None,
    token: "str | Callable[[], str] | Secret | None" = None,
    mechanism: "Mechanism | None" = None,
    tls: "bool | str | PathLike[str] | Tls | ssl.SSLContext | None" = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    client_id: str = "",
) -> "Client":
    """Connect to the broker at ``HOST:PORT``, with retries for ``connect_timeout`` seconds.

    ``seglogs://HOST:PORT`` connects with TLS, as does ``tls``: True, the file of an authority, or a ``Tls`` or
    SSLContext. An account is ``user`` with ``password``, text or a function that returns it, or ``password_file``; or
    else ``token``, likewise, for OAUTHBEARER. ``mechanism`` None is the best that the broker takes.

    Without an address the broker, its account and its authority are the command line's: SEGLOG_SERVER, SEGLOG_USER,
    SEGLOG_PASSWORD_FILE and SEGLOG_CA, else the profile of SEGLOG_PROFILE or the default one, else localhost:9192.

    ``client_id`` names this program in the broker's log. Raises NotReachableError, TlsError, AuthenticationError,
    RemoteProtocolError when the server is not a seglog broker, and ValueError for an invalid address, or settings that
    are wrong or contradict each other.
    """
    target = target_given(
        address, user=user, password=password, password_file=password_file, token=token, mechanism=mechanism, tls=tls
    )
    dialer = Dialer(target.address, client_id or CLIENT_ID, access=Access(target))
    return Client(dialer, dialer.dial(connect_timeout), connect_timeout, request_timeout)


class Client:
    """Client of one broker, made by ``connect``. Thread-safe, but not usable in a forked child.

    Its own calls share one connection; every producer and consumer opens another, so that long polls, large fetches and
    acknowledgements do not block each other. Closing the client closes them.
    """

    def __init__(self, dialer: Dialer, link: Link, connect_timeout: float, request_timeout: float) -> None:
        self._dialer = dialer
        self._link = link
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._owner = OwnerProcess("client")
        self._dialing = threading.Lock()  # one thread replaces a dead link, the others wait for it
        self._adopting = threading.Lock()  # guards what follows
        self._is_closed = False
        self._of_transactions: dict[weakref.ref[Transaction], dict[str, Producer]] = {}
        # Of none but C: in a callback of Python's, as a WeakSet has, an interrupt would be lost.
        self._children: set[weakref.ref[Producer | Consumer]] = set()
        self._timestamps: dict[str, TimestampWatch] = {}

    @property
    def server(self) -> str:
        """HOST:PORT of the broker."""
        return self._dialer.server

    @property
    def principal(self) -> str:
        """Whom the broker takes this program for, as ``User:alice``: its account, or whom its certificate names.

        "" where nobody has to say who it is.
        """
        return self._link.hello.principal or ""

    @property
    def tls_version(self) -> str:
        """As ``TLSv1.3``; "" without TLS."""
        return "" if self._link.tls is None else self._link.tls.version

    @property
    def broker(self) -> messages.HelloReply:
        """The broker's ``hello`` reply when the connection was opened."""
        return self._link.hello

    def ping(self) -> messages.HelloReply:
        """The broker's identity and health, asked over a new connection."""
        link = self._dial()
        try:
            return link.hello
        finally:
            link.close()

    # --- Topics -------------------------------------------------------------------------------------------------------

    @in_our_words
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, messages.ConfigValue] | None = None,
        *,
        exist_ok: bool = False,
    ) -> messages.CreateTopicReply:
        """Create a topic; ``partitions`` defaults to the broker's ``num.partitions``.

        With ``exist_ok`` an existing topic is returned, with a warning for each difference. Raises TopicExistsError
        otherwise, InvalidTopicError, InvalidPartitionsError, InvalidConfigError.
        """
        return self.converse(topics.create_topic(name, partitions, config, exist_ok=exist_ok))

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, messages.ConfigValue] | None = None,
        *,
        reset: Sequence[str] = (),
        partitions: int | None = None,
    ) -> messages.AlterTopicReply:
        """Set configuration values, reset those in ``reset`` to their defaults, raise the number of partitions.

        In effect when it returns. Raises UnknownTopicError, InvalidConfigError, InvalidPartitionsError.
        """
        return self.converse(topics.alter_topic(name, config, reset, partitions))

    def truncate_topic(self, name: str, before: Mapping[int, int | None]) -> dict[int, int]:
        """Delete the records of each partition below an offset; None means all records.

        Returns the new log start offset by partition, which is durable. Raises OffsetOutOfRangeError for an offset
        beyond the end, PolicyViolationError for a topic that is only compacted.
        """
        return self.converse(topics.truncate_topic(name, before))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its data. Raises UnknownTopicError, with the most similar name that exists.

        Its files are deleted after the topic's ``file.delete.delay.ms``.
        """
        self.converse(topics.delete_topic(name))

    def topics(self) -> list[messages.TopicDescription]:
        """All topics, by name; without their configuration."""
        return self.converse(topics.list_topics())

    def describe_topic(self, name: str) -> messages.TopicDescription:
        """One topic with every configuration value and its origin. Raises UnknownTopicError, with the nearest name."""
        return self.converse(topics.describe_topic(name))

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def offsets(
        self,
        topic: str,
        at: "str | datetime | Moment | None" = None,
        *,
        partitions: Sequence[int] | None = None,
        isolation: "Isolation" = "read_uncommitted",
    ) -> "list[PartitionOffsets]":
        """The ends of every partition, and with ``at`` its first record at or after that time.

        At isolation "read_committed" a partition ends at its last stable offset, see ``PartitionOffsets``.
        """
        from seglog.core.offsets import offsets_at  # noqa: PLC0415 - `seglog topic list` needs none of it

        return self.converse(offsets_at(topic, at, partitions, isolation))

    def lag(
        self,
        topic: str,
        positions: "Mapping[int, int] | Mapping[str, int]",
        *,
        isolation: "Isolation" = "read_uncommitted",
    ) -> "dict[int, PartitionLag]":
        """How far positions, as ``Consumer.positions`` gives them, are behind, and when retention reaches them.

        A position below the earliest offset or beyond the end is not an error; see ``PartitionLag``.
        """
        from seglog.core.offsets import look_up_lag  # noqa: PLC0415 - seldom asked

        return self.converse(look_up_lag(topic, positions, isolation=isolation))

    @property
    def explain(self) -> "Explain":
        """Explanations of seeks, segments and configuration."""
        return Explain(self)

    def metrics(self) -> dict[str, float]:
        """The broker's counters since its start, by name. Deprecated: ``samples`` reads families of docs/METRICS.md."""
        warnings.warn("metrics() goes with the next release: use samples()", DeprecationWarning, stacklevel=2)
        return self.call(messages.MetricsRequest(), messages.MetricsReply, is_repeatable=True)[0].metrics

    def samples(self, families: Sequence[str] = ()) -> list[messages.MetricFamily]:
        """The broker's metrics by family, in the order of docs/METRICS.md: those named, or all.

        A family that the broker does not have is left out; one that has no samples now is there without.
        """
        from seglog.core.samples import read_samples  # noqa: PLC0415 - few programs read metrics

        return self.converse(read_samples(families))

    def describe_broker(self) -> messages.DescribeBrokerReply:
        """The broker's configuration with origins, its warnings, listeners, versions and limits; without secrets."""
        return self.call(messages.DescribeBrokerRequest(), messages.DescribeBrokerReply, is_repeatable=True)[0]

    # --- Reading and writing ------------------------------------------------------------------------------------------

    @in_our_words
    def producer(
        self,
        topic: str,
        *,
        ack: "Ack" = "disk",
        linger_ms: float = 5,
        batch_bytes: int = 64 * 1024,
        compression: str = "none",
        compression_level: int | None = None,
        buffer_bytes: int = 32 * 1024 * 1024,
        delivery_timeout: float = 120.0,
        idempotent: bool = True,
    ) -> "Producer":
        """A producer for ``topic``. A missing topic is created if the broker allows that, else UnknownTopicError.

        ``ack`` is what a record must have reached: "none" (not answered), "os" (survives a crash of the broker), "disk"
        (survives power loss). Records linger up to ``linger_ms`` to share a batch of up to ``batch_bytes`` (less if the
        topic's limit is lower); 0 sends each at once. ``send`` waits while ``buffer_bytes`` are unacknowledged; a
        record fails after ``delivery_timeout`` seconds. With ``idempotent`` a record that is retried after a lost
        connection is in the log once; at ack "none" nothing is retried.
        """
        from seglog.core.producer_options import ProducerOptions  # noqa: PLC0415 - with all its codecs

        options = ProducerOptions(
            ack, linger_ms, batch_bytes, compression, compression_level, buffer_bytes, delivery_timeout, idempotent
        )
        return self.make_producer(topic, options)

    def make_producer(
        self,
        topic: str,
        options: "ProducerOptions",
        transaction: "OpenTransaction | None" = None,
        admit: "Extend | None" = None,
    ) -> "Producer":
        """As ``producer``, from options; ``transaction`` and ``admit`` as of ``Producer``."""
        from seglog.producer import Producer  # noqa: PLC0415 - as above

        description, epoch = self.converse(options.begin(topic, may_create=self.broker.auto_create_topics))
        watch = self.timestamps(topic)
        return self._adopted(
            lambda link: Producer(self._dialer, link, description, options, epoch, watch, transaction, admit)
        )

    @in_our_words
    def transaction(
        self,
        transactional_id: str,
        *,
        timeout: float = 60.0,
        linger_ms: float = 5,
        batch_bytes: int = 64 * 1024,
        compression: str = "none",
        compression_level: int | None = None,
        buffer_bytes: int = 32 * 1024 * 1024,
    ) -> "Transaction":
        """Transactions of the producer with this id, for ``with``: each block is one, and the object may be used again.

        All that is sent and committed in a block counts together, for those who read at isolation "read_committed":
        when the block is left, or never, if it is left by an exception. Of all producers with one id, the one that
        began last counts, others get TransactionFenced. A transaction that takes longer than ``timeout`` seconds is
        aborted by the broker. Other options are those of ``producer``.
        """
        from seglog.core.producer_options import ProducerOptions  # noqa: PLC0415 - with all its codecs
        from seglog.core.transactions import TransactionCore, let_go  # noqa: PLC0415 - few programs have transactions
        from seglog.transaction import Transaction  # noqa: PLC0415 - as above

        core = TransactionCore(transactional_id, timeout)
        options = ProducerOptions.of_transaction(
            timeout, linger_ms, batch_bytes, compression, compression_level, buffer_bytes
        )

        def make_producer(topic: str, part_of: "OpenTransaction", extend: "Extend") -> "Producer":
            for producer in let_go(self._of_transactions):
                producer.abort_now()  # so that a transaction object for each block leaves no connections behind
            return self.make_producer(topic, options, part_of, extend)

        transaction = Transaction(core, self.converse, make_producer)
        self._of_transactions[weakref.ref(transaction)] = transaction.producers
        return transaction

    def timestamps(self, topic: str) -> "TimestampWatch":
        """The timestamp checks of a topic; their warnings are issued once per client."""
        from seglog.core.timestamps import TimestampWatch  # noqa: PLC0415 - `seglog topic list` needs none of it

        return self._timestamps.setdefault(topic, TimestampWatch(topic))

    @overload
    def consumer(
        self,
        topic: str,
        *,
        group: None = None,
        partitions: Sequence[int] | None = None,
        start: "Place | None" = None,
        until: "Place | None" = None,
        follow: bool = False,
        durable_only: bool = False,
        isolation: "Isolation" = "read_uncommitted",
        on_out_of_range: "OutOfRange" = "error",
        on_gap: "Callable[[ConsumerGap], None] | None" = None,
        reconnect_timeout: float = 120.0,
        **limits: Any,
    ) -> "Consumer": ...

    @overload
    def consumer(
        self,
        topic: str,
        *,
        group: str,
        start: "Place | None" = None,
        until: "Place | None" = None,
        follow: bool = True,
        durable_only: bool = False,
        isolation: "Isolation" = "read_uncommitted",
        auto_commit: bool = True,
        auto_commit_interval: float = 5.0,
        on_assigned: "Callable[[list[int]], object] | None" = None,
        on_revoked: "Callable[[list[int], bool], object] | None" = None,
        on_gap: "Callable[[ConsumerGap], None] | None" = None,
        instance_id: str | None = None,
        session_timeout: float = 45.0,
        max_poll_interval: float = 300.0,
        assignors: Sequence[str] = ("range", "roundrobin"),
        reconnect_timeout: float = 120.0,
        **limits: Any,
    ) -> "GroupConsumer": ...

    def consumer(self, topic: str, *, group: str | None = None, **more: Any) -> "Consumer":
        """A consumer of ``topic``, all its partitions or some.

        ``start`` and ``until`` take an offset, {partition: offset} as ``positions()`` returns it, an aware datetime, or
        text ("-1h", "2019-01-01", "earliest", "latest"). ``start`` defaults to "earliest", with ``follow`` to "latest".
        Partitions missing in a mapping begin at the earliest offset, as do partitions added while the topic is
        followed. A partition stops at its first record at or after ``until``, and without ``follow`` at its current
        end. ``durable_only`` returns only records that survive power loss. ``isolation`` is "read_uncommitted", or
        "read_committed": no records of aborted transactions, and none from the first open transaction on.
        ``on_out_of_range`` is for an offset outside the log: "error", or the end to continue at. ``on_gap`` is called
        with offsets without a record, before the record after them; ``Consumer.gaps`` keeps them. ``limits``:
        decompressed_batch_bytes_max, fetch_bytes, partition_bytes.

        With ``group`` the consumer shares the partitions with the group's other members, and goes on at the group's
        committed offsets; ``start`` ("earliest") is for partitions without one, and for those whose offset is outside
        the log. It follows unless ``follow`` is False. Records are committed once the program asks for the next one:
        every ``auto_commit_interval`` seconds, when partitions are revoked and at the end; without ``auto_commit`` the
        program calls ``commit``. ``on_assigned(partitions)`` is called before partitions are read,
        ``on_revoked(partitions, lost)`` before they are revoked, or with ``lost`` when others may read them already;
        both by the thread that reads. ``instance_id`` makes a static member, which does not leave at the end, and gets
        its partitions back when it returns within ``session_timeout`` seconds. A program that does not ask for records
        for ``max_poll_interval`` seconds loses its partitions until it does. ``assignors``: "range", "roundrobin" or,
        alone, "cooperative-sticky".
        """
        from seglog.core.consumer_options import consumer_options, group_options  # noqa: PLC0415

        if group is None:
            from seglog.consumer import Consumer  # noqa: PLC0415 - with all its codecs

            options = consumer_options(more)
            return self._adopted(
                lambda link: Consumer(self._dialer, link, topic, options, timeout=self._request_timeout)
            )
        from seglog.group_consumer import GroupConsumer  # noqa: PLC0415 - and with Kafka's messages

        of_group = group_options(group, self._dialer.client_id, more)
        return self._adopted(
            lambda link: GroupConsumer(self._dialer, link, topic, of_group, timeout=self._request_timeout)
        )

    def _adopted(self, make: Callable[[Link], ChildT]) -> ChildT:
        try:
            child = self._made(make)
        except ConnectionLostError:  # repeatable: the broker may just have restarted
            child = self._made(make)
        with self._adopting:
            if not self._is_closed:
                self._children.add(weakref.ref(child, self._children.discard))
                return child
        child.close()
        raise ClientClosedError("the client is closed")

    def _made(self, make: Callable[[Link], ChildT]) -> ChildT:
        link = self._dial()
        try:
            return make(link)
        except BaseException:
            link.close()
            raise

    # --- Calls --------------------------------------------------------------------------------------------------------

    def call(
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
        return self.converse(ask(request, reply_type, payload, is_repeatable=is_repeatable))

    def post(self, request: messages.Request, payload: Sequence[Buffer] = ()) -> None:
        """Send a request that gets no reply."""
        self._usable_link().send(request, payload, on_reply=None, timeout=self._request_timeout)

    def converse(self, conversation: Conversation[ResultT]) -> ResultT:
        """Run a conversation; raises what ``call`` raises."""
        return converse(conversation, self._answer)

    def _answer(self, question: Ask) -> Reply:
        request, payload, is_repeatable, _ = question
        try:
            return self._usable_link().ask(request, payload, timeout=self._request_timeout)
        except ConnectionLostError:
            if not is_repeatable:
                raise
        return self._usable_link().ask(request, payload, timeout=self._request_timeout)

    def _usable_link(self) -> Link:
        """The link, or a new one if the old one is known to be broken."""
        self._check_open()
        with self._dialing:
            if not self._link.is_usable():
                self._link.close()
                self._link = self._dialer.dial(self._connect_timeout)
                if self._is_closed:
                    self._link.close()
            return self._link

    def _dial(self) -> Link:
        self._check_open()
        return self._dialer.dial(self._connect_timeout)

    def _check_open(self) -> None:
        self._owner.check()
        if self._is_closed:
            raise ClientClosedError("the client is closed")

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Abort open transactions, close the producers (which flushes them) and consumers, then the connection.

        Idempotent. Raises DeliveryFailed when records were not acknowledged; everything is closed nevertheless. In a
        forked child only its copies of the sockets are closed.
        """
        self._close(lambda child: child.close())

    def abort(self) -> None:
        """Close at once: nothing is flushed, committed or waited for. Idempotent.

        Who waits for a producer or consumer of this client gets ClientClosedError.
        """
        self._close(lambda child: child.abort_now(), ends_transactions=False)
        self._link.close()  # also where an earlier close waits, or was interrupted before it came to this

    def _close(self, close_child: "Callable[[Producer | Consumer], None]", *, ends_transactions: bool = True) -> None:
        if self._owner.is_here:
            with self._adopting:
                if self._is_closed:
                    return
                self._is_closed = True
        else:
            self._is_closed = True
        children = [child for kept in list(self._children) if (child := kept()) is not None]
        first: SeglogError | None = None
        try:
            if ends_transactions and self._owner.is_here:
                self._end_transactions()
            for child in children:
                try:
                    close_child(child)
                except SeglogError as error:
                    first = first or error
        finally:
            self._link.close()
        if first is not None:
            raise first

    def _end_transactions(self) -> None:
        """Abort open transactions, all within END_SECONDS."""
        if not self._of_transactions:
            return
        from seglog.core.transactions import END_SECONDS  # noqa: PLC0415 - few programs have transactions

        deadline = time.monotonic() + END_SECONDS
        for found in list(self._of_transactions):
            transaction = found()
            if transaction is not None:
                transaction.leave(self._link, max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = __await__ = refuse_async_block

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(lambda child: child.__exit__(kind, error, trace))

    # --- Accounts -----------------------------------------------------------------------------------------------------

    def users(self, names: Sequence[str] | None = None) -> "list[messages.UserDescription]":
        """The accounts called ``names``, or all, by name, without what could be used to log in.

        Raises UnknownUserError for a name that there is not, and AuthorizationError for those who may not administer.
        """
        from seglog.core.users import list_users  # noqa: PLC0415 - seldom asked

        return self.converse(list_users(names))

    def create_user(
        self, name: str, password: "str | Callable[[], str] | Secret", *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Make an account for SCRAM and PLAIN. The password does not leave this process, only what is derived from it.

        ``iterations`` (4096 to 16384) is how much work a guess at the password is. Raises UserExistsError,
        AuthorizationError, UnacceptableCredentialError, and ValueError for a name or password that SASLprep changes.
        """
        password = Secret(password)
        from seglog.core.users import create_user  # noqa: PLC0415 - seldom asked

        self.converse(create_user(name, password, iterations))

    def set_password(
        self, name: str, password: "str | Callable[[], str] | Secret", *, iterations: int = ITERATIONS_DEFAULT
    ) -> None:
        """Give an account another password, as ``create_user``. Raises UnknownUserError, AuthorizationError."""
        password = Secret(password)
        from seglog.core.users import set_password  # noqa: PLC0415 - seldom asked

        self.converse(set_password(name, password, iterations))

    def delete_user(self, name: str) -> None:
        """Delete an account. Raises UnknownUserError, AuthorizationError."""
        from seglog.core.users import delete_user  # noqa: PLC0415 - seldom asked

        self.converse(delete_user(name))

    # --- Groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> "list[ListedGroup]":
        """All consumer groups, by name: their state, and when what they committed expires."""
        from seglog.groups import list_groups  # noqa: PLC0415 - seldom asked

        return (self.converse(list_groups()))[0]

    def describe_group(self, name: str) -> "GroupDescription":
        """A group with its members, what it committed, and how far that is behind. Raises UnknownGroupError."""
        from seglog.groups import describe_group  # noqa: PLC0415 - seldom asked

        return self.converse(describe_group(name))

    def group_offsets(self, name: str) -> "list[GroupOffset]":
        """The committed offsets of a group and its lag, by topic and partition; empty for an unknown group."""
        from seglog.groups import group_offsets  # noqa: PLC0415 - seldom asked

        return self.converse(group_offsets(name))

    def reset_group(
        self,
        name: str,
        to: "int | str | datetime | Moment | Shift",
        topics: "GroupTopics | None" = None,
        *,
        dry_run: bool = False,
    ) -> "list[OffsetReset]":
        """Commit other offsets for a group without members, and return what changed, in ``topics`` or all it has read.

        ``to`` is an offset, "earliest", "latest", a time as for ``consumer``, or ``Shift(n)``, as text "+n" or "-n":
        so many records from the committed offset. It is limited to the log, see ``OffsetReset.note``. With ``dry_run``
        nothing is committed. A group that is not there is made. Raises NonEmptyGroupError, which names the members,
        UnknownTopicError, UnknownPartitionError, and ValueError where there is nothing to reset, or to count from.
        """
        from seglog.groups import reset_group  # noqa: PLC0415 - seldom asked

        return self.converse(reset_group(name, to, topics, dry_run=dry_run))

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets. Raises UnknownGroupError, NonEmptyGroupError while it has members."""
        from seglog.groups import delete_group  # noqa: PLC0415 - seldom asked

        self.converse(delete_group(name))

    def delete_groups(self, names: Sequence[str]) -> "list[DeletedGroup]":
        """As ``delete_group``, for several: one result for each, with its error if it was not deleted."""
        from seglog.groups import delete_groups  # noqa: PLC0415 - seldom asked

        return self.converse(delete_groups(names))

    def delete_group_offsets(self, name: str, topics: "GroupTopics") -> list[tuple[str, int]]:
        """Delete the committed offsets of topics that none of its members reads; returns the topics and partitions.

        Raises GroupSubscribedError while a member does.
        """
        from seglog.groups import delete_group_offsets  # noqa: PLC0415 - seldom asked

        return self.converse(delete_group_offsets(name, topics))

    # --- Transactions of any producer ---------------------------------------------------------------------------------

    def transactions(self) -> "list[TransactionDescription]":
        """All producers that have transactions, by their transactional ids, each without its partitions.

        Raises CoordinatorNotAvailableError where the broker cannot read what some of them were.
        """
        from seglog.core.transaction_admin import list_transactions  # noqa: PLC0415 - seldom asked

        return self.converse(list_transactions()).whole()

    def describe_transaction(self, transactional_id: str) -> "TransactionDescription":
        """The transaction of a producer, with its partitions. Raises a RequestError for an id that is not known."""
        from seglog.core.transaction_admin import describe_transaction  # noqa: PLC0415 - seldom asked

        return self.converse(describe_transaction(transactional_id))[0]

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of a producer that does not end it, and fence the producer.

        Raises a RequestError where none is open, AuthorizationError for those who may not administer.
        """
        from seglog.core.transaction_admin import abort_transaction  # noqa: PLC0415 - seldom asked

        self.converse(abort_transaction(transactional_id))


class Explain:
    """``client.explain``: explanations from the broker."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def seek(self, topic: str, partition: int, at: "int | str | datetime | Moment") -> messages.ExplainReply:
        """How a fetch from ``at``, an offset or a time, finds its position: the trace of a seek made for this call."""
        from seglog.core.explaining import explain_seek  # noqa: PLC0415 - seldom asked

        return self._client.converse(explain_seek(topic, partition, at))

    def segments(self, topic: str, partition: int, *, drops: bool = False) -> "PartitionExplanation":
        """Why each segment of a partition is kept, and when it can be deleted.

        What compaction would drop is included where computing it is cheap, and always with ``drops``.
        """
        from seglog.core.explaining import explain_segments  # noqa: PLC0415 - seldom asked

        return self._client.converse(explain_segments(topic, partition, drops=drops))

    def config(self, topic: str) -> dict[str, messages.ConfigEntry]:
        """Every effective configuration value of a topic, and its origin."""
        from seglog.core.explaining import explain_config  # noqa: PLC0415 - seldom asked

        return self._client.converse(explain_config(topic))
