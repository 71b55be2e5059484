"""Verbs of a client, declared once for all faces: each is a conversation, which a face runs in its own way."""

import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from importlib import import_module
from inspect import getattr_static, signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, get_args, overload

from seglog.core import topics
from seglog.core.conversations import Conversation, ask, check
from seglog.core.wrong_face import in_our_words
from seglog_protocol import messages

if TYPE_CHECKING:
    from datetime import datetime

    from seglog import groups
    from seglog.access import DialerBase, LinkBase
    from seglog.core import explaining, offsets, transaction_admin, users
    from seglog.core.consumer_options import ConsumerOptions, GroupOptions
    from seglog.core.explaining import PartitionExplanation
    from seglog.core.fetcher import OutOfRange
    from seglog.core.moments import Moment
    from seglog.core.offsets import PartitionLag, PartitionOffsets, Place
    from seglog.core.producer_options import ProducerOptions
    from seglog.core.queue_session import QueueOptions
    from seglog.core.records import ConsumerGap
    from seglog.core.timestamps import TimestampWatch
    from seglog.core.transactions import TransactionCore
    from seglog.groups import DeletedGroup, GroupDescription, GroupOffset, GroupTopics, OffsetReset, Shift
    from seglog_protocol.isolation import Isolation
    from seglog_protocol.messages import Ack, ListedGroup, TransactionDescription

else:

    class Seldom:
        """A module of ours that is imported when it is first asked for something: few programs do."""

        def __init__(self, name: str) -> None:
            self._name = f"seglog.{name}"

        def __getattr__(self, name: str) -> object:
            return getattr(import_module(self._name), name)

    groups, explaining, offsets = Seldom("groups"), Seldom("core.explaining"), Seldom("core.offsets")
    transaction_admin, users = Seldom("core.transaction_admin"), Seldom("core.users")

_ParamsT = ParamSpec("_ParamsT")
ResultT = TypeVar("ResultT")
ProducerT = TypeVar("ProducerT")
TransactionT = TypeVar("TransactionT")
ConsumerT = TypeVar("ConsumerT")
GroupConsumerT = TypeVar("GroupConsumerT")
QueueT = TypeVar("QueueT")


class Verb(Generic[_ParamsT, ResultT]):
    """A conversation that each face has as a method: one that returns its result, or one that is awaited for it.

    A face's own class has the method itself, so that this stands for its type alone.
    """

    def __init__(self, conversation: Callable[Concatenate[Any, _ParamsT], Conversation[ResultT]]) -> None:
        self.conversation = conversation

    @overload
    def __get__(self, face: "Blocking", owner: object) -> Callable[_ParamsT, ResultT]: ...

    @overload
    def __get__(self, face: "Awaited", owner: object) -> Callable[_ParamsT, Coroutine[Any, Any, ResultT]]: ...

    def __get__(self, face: object, owner: object) -> object:
        """Raise AttributeError: it belongs to no face."""
        raise AttributeError("a verb belongs to a face")


class Blocking:
    """A face whose verbs return their results."""

    def __init_subclass__(cls) -> None:
        _declare(cls, _blocking)

    def converse(self, conversation: Conversation[ResultT]) -> ResultT:
        """Run a conversation; raises what ``call`` raises."""
        raise NotImplementedError


class Awaited:
    """A face whose verbs are awaited."""

    def __init_subclass__(cls) -> None:
        _declare(cls, _awaited)

    async def converse(self, conversation: Conversation[ResultT]) -> ResultT:
        """Run a conversation; raises what ``call`` raises."""
        raise NotImplementedError


def _declare(face: type, made: Callable[[Callable[..., Any]], Any]) -> None:
    """Give a face the methods of its verbs, with their names, docstrings, and signatures without the conversation.

    Of those alone that it has as verbs: a method of its own, or of a face above it, stays.
    """
    for name, verb in [each for base in face.__mro__ for each in vars(base).items() if isinstance(each[1], Verb)]:
        if getattr_static(face, name) is not verb:
            continue
        method: Any = wraps(verb.conversation)(made(verb.conversation))
        found = signature(verb.conversation)
        told = found.return_annotation
        result = told[len("Conversation[") : -1] if isinstance(told, str) else get_args(told)[2]
        method.__signature__ = found.replace(return_annotation=result)
        method.__annotations__ = {**method.__annotations__, "return": result}
        method.__module__, method.__qualname__ = face.__module__, f"{face.__qualname__}.{name}"
        setattr(face, name, method)


def _blocking(conversation: Callable[..., Any]) -> Callable[..., Any]:
    """A method that runs the conversation and returns its result."""
    return lambda face, *arguments, **keywords: face.converse(conversation(face, *arguments, **keywords))


def _awaited(conversation: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is awaited for the result of the conversation."""

    async def method(face: Awaited, *arguments: Any, **keywords: Any) -> Any:
        return await face.converse(conversation(face, *arguments, **keywords))

    return method


class ClientVerbs(Generic[ProducerT, TransactionT, ConsumerT, GroupConsumerT, QueueT]):
    """Verbs of a client, and what it makes: producers, transactions and consumers of its face."""

    _dialer: "DialerBase"

    def __init__(self) -> None:
        self._timestamps: dict[str, TimestampWatch] = {}

    def _queue(self, options: "QueueOptions") -> QueueT:
        """A queue of the face."""
        raise NotImplementedError

    def _greeted(self) -> "LinkBase":
        """The link of the client's own calls."""
        raise NotImplementedError

    def _producer(self, topic: str, options: "ProducerOptions") -> ProducerT:
        """Make a producer, at once or when it is opened."""
        raise NotImplementedError

    def _transaction(self, core: "TransactionCore", options: "ProducerOptions") -> TransactionT:
        """Make the transactions of a producer."""
        raise NotImplementedError

    def _consumer(self, topic: str, options: "ConsumerOptions") -> ConsumerT:
        """Make a consumer of its own, at once or when it is opened."""
        raise NotImplementedError

    def _group_consumer(self, topic: str, options: "GroupOptions") -> GroupConsumerT:
        """Make a member of a group, at once or when it is opened."""
        raise NotImplementedError

    @property
    def server(self) -> str:
        """HOST:PORT of the broker."""
        return self._dialer.server

    @property
    def principal(self) -> str:
        """The name that the broker has for this program, as ``User:alice``: its account, or that of its certificate.

        "" where nobody has to say who it is.
        """
        return self._greeted().hello.principal or ""

    @property
    def tls_version(self) -> str:
        """The version, as ``TLSv1.3``; "" without TLS."""
        tls = self._greeted().tls
        return "" if tls is None else tls.version

    @property
    def broker(self) -> messages.HelloReply:
        """The broker's ``hello`` reply when the connection was opened."""
        return self._greeted().hello

    # --- Topics -------------------------------------------------------------------------------------------------------

    @Verb
    @in_our_words
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, messages.ConfigValue] | None = None,
        *,
        exist_ok: bool = False,
    ) -> Conversation[messages.CreateTopicReply]:
        """Create a topic; ``partitions`` defaults to the broker's ``num.partitions``.

        With ``exist_ok`` an existing topic is returned, with a warning for each difference. Raises TopicExistsError
        otherwise, InvalidTopicError, InvalidPartitionsError, InvalidConfigError.
        """
        return topics.create_topic(name, partitions, config, exist_ok=exist_ok)

    @Verb
    def alter_topic(
        self,
        name: str,
        config: Mapping[str, messages.ConfigValue] | None = None,
        *,
        reset: Sequence[str] = (),
        partitions: int | None = None,
    ) -> Conversation[messages.AlterTopicReply]:
        """Set configuration values, reset those in ``reset`` to their defaults, raise the number of partitions.

        In effect when it returns. Raises UnknownTopicError, InvalidConfigError, InvalidPartitionsError.
        """
        request = messages.AlterTopicRequest(name, dict(config or {}), list(reset), partitions)
        return (yield from ask(request, messages.AlterTopicReply, is_repeatable=True))[0]

    @Verb
    def truncate_topic(self, name: str, before: Mapping[int, int | None]) -> Conversation[dict[int, int]]:
        """Delete the records of each partition below an offset, where that is possible; None means all records.

        Returns the new log start offset by partition, which is durable. Raises OffsetOutOfRangeError for an offset
        beyond the end, PolicyViolationError for a topic that is only compacted.
        """
        asked = [messages.TruncatePartition(name, partition, offset) for partition, offset in sorted(before.items())]
        reply, _ = yield from ask(messages.TruncateRequest(asked), messages.TruncateReply, is_repeatable=True)
        check(reply.partitions)
        return {result.partition: result.earliest or 0 for result in reply.partitions}

    @Verb
    def delete_topic(self, name: str) -> Conversation[None]:
        """Delete a topic and its data. Raises UnknownTopicError, with the most similar name that exists.

        Its files are deleted after the topic's ``file.delete.delay.ms``.
        """
        yield from ask(messages.DeleteTopicRequest(name), messages.DeleteTopicReply)

    @Verb
    def topics(self) -> Conversation[list[messages.TopicDescription]]:
        """All topics, by name; without their configuration."""
        found: list[messages.TopicDescription] = []
        while True:
            after = found[-1].name if found else ""
            reply, page = yield from topics.page(messages.TopicsRequest(after=after))
            found += page
            if not reply.more or not page:
                return found

    @Verb
    def describe_topic(self, name: str) -> Conversation[messages.TopicDescription]:
        """One topic with every configuration value and its origin. Raises UnknownTopicError, with the nearest name."""
        return topics.describe_topic(name)

    # --- Offsets ------------------------------------------------------------------------------------------------------

    @Verb
    def offsets(
        self,
        topic: str,
        at: "str | datetime | Moment | None" = None,
        *,
        partitions: Sequence[int] | None = None,
        isolation: "Isolation" = "read_uncommitted",
    ) -> "Conversation[list[PartitionOffsets]]":
        """The ends of every partition, and with ``at`` its first record at or after that time.

        At isolation "read_committed" a partition ends at its last stable offset, see ``PartitionOffsets``.
        """
        return offsets.offsets_at(topic, at, partitions, isolation)

    @Verb
    def lag(
        self,
        topic: str,
        positions: "Mapping[int, int] | Mapping[str, int]",
        *,
        isolation: "Isolation" = "read_uncommitted",
    ) -> "Conversation[dict[int, PartitionLag]]":
        """How far positions, as ``Consumer.positions`` gives them, are behind, and when retention reaches them.

        A position below the earliest offset or beyond the end is not an error; see ``PartitionLag``.
        """
        return offsets.look_up_lag(topic, positions, isolation=isolation)

    @Verb
    def metrics(self) -> Conversation[dict[str, float]]:
        """The broker's counters since its start, by name. Deprecated: ``samples`` reads families of docs/METRICS.md."""
        warnings.warn("metrics() goes with the next release: use samples()", DeprecationWarning, stacklevel=3)
        return _counters()

    @Verb
    def samples(self, families: Sequence[str] = ()) -> Conversation[list[messages.MetricFamily]]:
        """The broker's metrics by family, in the order of docs/METRICS.md: those named, or all.

        A family that the broker does not have is left out; one that has no samples now is there without.
        """
        found: dict[str, messages.MetricFamily] = {}
        after = ""
        while True:
            request = messages.SamplesRequest(list(families), after)
            reply, payload = yield from ask(request, messages.SamplesReply, is_repeatable=True)
            page = messages.decode_samples(payload)
            for part in page:  # a family may come in several
                if part.name in found:
                    found[part.name].samples.extend(part.samples)
                else:
                    found[part.name] = part
            if not reply.more or not page:
                return list(found.values())
            after = page[-1].name

    @Verb
    def describe_broker(self) -> Conversation[messages.DescribeBrokerReply]:
        """The broker's configuration with origins, its warnings, listeners, versions and limits; without secrets."""
        return (yield from ask(messages.DescribeBrokerRequest(), messages.DescribeBrokerReply, is_repeatable=True))[0]

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
    ) -> ProducerT:
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
        return self._producer(topic, options)

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
    ) -> TransactionT:
        """Transactions of the producer with this id, for ``with``: each block is one, and the object may be used again.

        All that is sent and committed in a block counts together, for those who read at isolation "read_committed":
        when the block is left, or never, if it is left by an exception. Of all producers with one id, the one that
        began last counts, others get TransactionFenced. A transaction that takes longer than ``timeout`` seconds is
        aborted by the broker. Other options are those of ``producer``.
        """
        from seglog.core.producer_options import ProducerOptions  # noqa: PLC0415 - with all its codecs
        from seglog.core.transactions import TransactionCore  # noqa: PLC0415 - few programs have transactions

        sizes = linger_ms, batch_bytes, compression, compression_level, buffer_bytes
        # What is committed is made durable by the commit.
        options = ProducerOptions("os", *sizes, delivery_timeout=timeout, transactional=True)
        return self._transaction(TransactionCore(transactional_id, timeout), options)

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
    ) -> ConsumerT: ...

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
    ) -> GroupConsumerT: ...

    def consumer(self, topic: str, *, group: str | None = None, **more: Any) -> ConsumerT | GroupConsumerT:
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
            return self._consumer(topic, consumer_options(more))
        return self._group_consumer(topic, group_options(group, self._dialer.client_id, more))

    @in_our_words
    def queue(
        self,
        topics: "str | Sequence[str]",
        *,
        group: str,
        start: 'Literal["earliest", "latest"] | None' = None,
        prefetch: int = 500,
        reconnect_timeout: float = 120.0,
    ) -> QueueT:
        """The records of topics as jobs, each for one member of the group, which is a share group.

        A job runs again when it is released, or when its member dies, up to the group's limit of attempts; and seldom,
        although it was done. Its lock is renewed for as long as the program has it. Jobs are fetched ahead for about a
        second of work, ``prefetch`` at most; with 0, when they are asked for.

        ``start`` is where the group begins in partitions that it has never read: it becomes a setting of the group,
        which administrators alone may change. None leaves that as it is: "latest", where nobody has set it. Raises
        UnknownTopicError, AuthorizationError.
        """
        from seglog.core.queue_session import QueueOptions  # noqa: PLC0415 - with Kafka's messages

        given = (topics,) if isinstance(topics, str) else tuple(topics)
        return self._queue(QueueOptions(given, group, self._dialer.client_id, prefetch, reconnect_timeout, start))

    # --- Accounts -----------------------------------------------------------------------------------------------------

    @Verb
    def users(self, names: Sequence[str] | None = None) -> "Conversation[list[users.UserDescription]]":
        """The accounts called ``names``, or all, by name, without what could be used to log in.

        Raises UnknownUserError for a name that there is not, and AuthorizationError for those who may not administer.
        """
        return users.list_users(names)

    @Verb
    def delete_user(self, name: str) -> Conversation[None]:
        """Delete an account. Raises UnknownUserError, AuthorizationError."""
        return users.delete_user(name)

    # --- Groups -------------------------------------------------------------------------------------------------------

    @Verb
    def groups(self) -> "Conversation[list[ListedGroup]]":
        """All consumer groups, by name: their state, and when what they committed expires."""
        return (yield from groups.list_groups())[0]

    @Verb
    def describe_group(self, name: str) -> "Conversation[GroupDescription]":
        """A group with its members, what it committed, and how far that is behind. Raises UnknownGroupError."""
        return groups.describe_group(name)

    @Verb
    def group_offsets(self, name: str) -> "Conversation[list[GroupOffset]]":
        """The committed offsets of a group and its lag, by topic and partition; empty for an unknown group."""
        return groups.group_offsets(name)

    @Verb
    def reset_group(
        self,
        name: str,
        to: "int | str | datetime | Moment | Shift",
        topics: "GroupTopics | None" = None,
        *,
        dry_run: bool = False,
    ) -> "Conversation[list[OffsetReset]]":
        """Commit other offsets for a group without members, and return what changed, in ``topics`` or all it has read.

        ``to`` is an offset, "earliest", "latest", a time as for ``consumer``, or ``Shift(n)``, as text "+n" or "-n":
        so many records from the committed offset. It is limited to the log, see ``OffsetReset.note``. With ``dry_run``
        nothing is committed. A group that is not there is made. Raises NonEmptyGroupError, which names the members,
        UnknownTopicError, UnknownPartitionError, and ValueError where there is nothing to reset, or to count from.
        """
        return groups.reset_group(name, to, topics, dry_run=dry_run)

    @Verb
    def delete_group(self, name: str) -> Conversation[None]:
        """Delete a group and its offsets. Raises UnknownGroupError, NonEmptyGroupError while it has members."""
        return groups.delete_group(name)

    @Verb
    def delete_groups(self, names: Sequence[str]) -> "Conversation[list[DeletedGroup]]":
        """As ``delete_group``, for several: one result for each, with its error if it was not deleted."""
        return groups.delete_groups(names)

    @Verb
    def delete_group_offsets(self, name: str, topics: "GroupTopics") -> Conversation[list[tuple[str, int]]]:
        """Delete the committed offsets of topics that none of its members reads; returns the topics and partitions.

        Raises GroupSubscribedError while a member does.
        """
        return groups.delete_group_offsets(name, topics)

    # --- Transactions of any producer ---------------------------------------------------------------------------------

    @Verb
    def transactions(self) -> "Conversation[list[TransactionDescription]]":
        """All producers that have transactions, by their transactional ids, each without its partitions.

        Raises CoordinatorNotAvailableError where the broker cannot read what some of them were.
        """
        return (yield from transaction_admin.list_transactions()).whole()

    @Verb
    def describe_transaction(self, transactional_id: str) -> "Conversation[TransactionDescription]":
        """The transaction of a producer, with its partitions. Raises a RequestError for an id that is not known."""
        return (yield from transaction_admin.describe_transaction(transactional_id))[0]

    @Verb
    def abort_transaction(self, transactional_id: str) -> Conversation[None]:
        """Abort the open transaction of a producer that does not end it, and fence the producer.

        Raises a RequestError where none is open, AuthorizationError for those who may not administer.
        """
        return transaction_admin.abort_transaction(transactional_id)


def _counters() -> Conversation[dict[str, float]]:
    """The counters of ``ClientVerbs.metrics``, which itself is called at once, for its warning."""
    return (yield from ask(messages.MetricsRequest(), messages.MetricsReply, is_repeatable=True))[0].metrics


class ExplainVerbs:
    """``client.explain``: explanations from the broker."""

    def __init__(self, client: Any) -> None:
        self.converse = client.converse

    @Verb
    def seek(
        self, topic: str, partition: int, at: "int | str | datetime | Moment"
    ) -> Conversation[messages.ExplainReply]:
        """How a fetch from ``at``, an offset or a time, finds its position: the trace of a seek made for this call."""
        return explaining.explain_seek(topic, partition, at)

    @Verb
    def delivery(
        self, topic: str, partition: int, group: str, offset: int | None = None
    ) -> Conversation[messages.ExplainReply]:
        """Who of a share group has records of a partition; with ``offset`` also what became of the record there."""
        return explaining.explain_delivery(topic, partition, group, offset)

    @Verb
    def segments(self, topic: str, partition: int, *, drops: bool = False) -> "Conversation[PartitionExplanation]":
        """Why each segment of a partition is kept, and when it can be deleted.

        What compaction would drop is included where computing it is cheap, and always with ``drops``.
        """
        return explaining.explain_segments(topic, partition, drops=drops)

    @Verb
    def config(self, topic: str) -> Conversation[dict[str, messages.ConfigEntry]]:
        """Every effective configuration value of a topic, and its origin."""
        return (yield from topics.describe_topic(topic)).config or {}
