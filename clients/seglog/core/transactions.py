"""Transactions of one transactional id, without socket, thread or clock, shared by all faces of the client.

Three errors tell what a program can do: TransactionAborted (nothing of it counts: do the work again in a new one),
TransactionUnanswered (the broker did not answer: ask again for the same end), TransactionFenced (another producer has
the transactional id: stop).
"""

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from seglog.core.accumulator import ProducerEpoch
from seglog.core.committed_offsets import commit_request
from seglog.core.conversations import Conversation, ask, pages, patiently
from seglog.core.errors import copied, seconds_of
from seglog.core.group_membership import Member
from seglog.core.transaction_admin import without_transactions
from seglog_protocol import errors, messages
from seglog_protocol.messages import MessageT

END_SECONDS: Final = 5.0
"""How long a block that is cancelled, or a client that is closed, waits for the end of a transaction."""

ID_BYTES_MAX: Final = 32_767
"""The limit of a transactional id in UTF-8: that of a string in Kafka's records."""

PARTITIONS_A_REQUEST: Final = 1_000
"""The most partitions that one request makes part of a transaction: its header has a limit."""

_FENCED: Final = errors.ProducerFencedError, errors.InvalidProducerEpochError, errors.InvalidProducerIdMappingError
_UNANSWERED: Final = errors.ClientError, errors.ProtocolError, errors.AuthenticationError
"""Errors that are no answer of the broker to the request, which it may have served."""

TIMEOUT_SECONDS_MAX: Final = (2**31 - 1) / 1000
"""Above what any broker can be configured to permit."""

OffsetsById = Mapping[str, Mapping[int, int]]
"""By the id of a topic ("" if it is not known): the offsets of partitions."""


ProducerT = TypeVar("ProducerT")
TransactionT = TypeVar("TransactionT")


def check_in_group(consumer: object) -> None:
    """Raise TypeError unless it is a consumer in a group."""
    if not hasattr(consumer, "commit_in_transaction"):
        raise TypeError(
            "the offsets of a transaction are those of a consumer in a group, "
            f"client.consumer(topic, group=..., auto_commit=False), not of a {type(consumer).__name__}"
        )


def let_go(kept: dict[weakref.ref[TransactionT], dict[str, ProducerT]]) -> list[ProducerT]:
    """The producers, kept by transaction and topic, of transactions that the program has no more: taken out."""
    return [
        producer
        for transaction in list(kept)
        if transaction() is None
        for producer in kept.pop(transaction, {}).values()
    ]


class OpenTransaction:
    """A transaction from its begin to its end, and what is part of it.

    A call that began in it becomes part of no later one, however long it waits. Any thread may use it.
    """

    def __init__(self, transactional_id: str, epoch: ProducerEpoch) -> None:
        self.transactional_id = transactional_id
        self.epoch = epoch
        self.partitions: set[tuple[str, int]] = set()
        """Those whose batches may be sent."""
        self.wanted: deque[tuple[str, int]] = deque()
        """Partitions that the next request for some, whoever sends it, takes along."""
        self.may_have_begun = False
        """At the broker, by a request that was answered or not."""
        self.is_closing = False
        """Whether a commit sends what is there, and takes nothing more."""
        self.is_ending = False
        """Whether it is aborted, or the broker is asked for its commit."""

    def check(self) -> None:
        """Raise ClientError if its end has begun: it takes nothing more from the program."""
        if self.is_closing or self.is_ending:
            raise self.ended()

    def enter(self) -> None:
        """Call this before each request that makes something part of it. Raises ClientError where it is too late."""
        self.may_have_begun = True  # first, so that an end that begins now is one of the broker, too
        if self.is_ending:
            raise self.ended()

    def wants(self, topic: str, partitions: Iterable[int]) -> bool:
        """Whether a request is needed before batches of these partitions may be sent; the next one takes them along.

        Raises ClientError where it is too late.
        """
        self.enter()
        new = [each for partition in partitions if (each := (topic, partition)) not in self.partitions]
        self.wanted.extend(new)
        return bool(new)

    def ended(self) -> errors.ClientError:
        """The error of a call that came too late."""
        return errors.ClientError(
            f"the transaction of {self.transactional_id} has ended meanwhile, and this call is part of no other one: "
            "end a transaction when every call for it has returned"
        )


class TransactionCore:
    """The producer of a transactional id: its epoch, and its open transaction.

    Conversations raise TransactionFenced, and ``ending`` TransactionUnanswered; others raise the broker's errors.
    """

    def __init__(self, transactional_id: str, timeout_seconds: float) -> None:
        text: object = transactional_id
        if not isinstance(text, str) or not text:
            raise ValueError(f"a transactional id is text, and not empty, not {transactional_id!r}")
        size = len(text.encode())
        if size > ID_BYTES_MAX:
            raise ValueError(f"a transactional id is at most {ID_BYTES_MAX:,} bytes of UTF-8, not {size:,}")
        number: object = timeout_seconds
        if not isinstance(number, int | float) or not 0 < number <= TIMEOUT_SECONDS_MAX:
            raise ValueError(
                f"timeout is a number of seconds, more than 0 and at most {TIMEOUT_SECONDS_MAX:,.0f}, not "
                f"{timeout_seconds!r}"
            )
        self.transactional_id = transactional_id
        self.timeout_seconds = float(timeout_seconds)
        self.epoch: ProducerEpoch | None = None
        """None before the first transaction, and where the broker is to be asked for it again."""
        self.is_open = False
        self._open: OpenTransaction | None = None  # also None while it begins
        self._fenced: errors.TransactionFenced | None = None
        self._is_doubtful = False  # whether a commit was asked for by a request that was not answered
        self._wanted: bool | None = None  # the end that was asked for, and not answered: whether it is a commit
        self._end: bool | None = None  # how the last transaction has ended, likewise

    def beginning(self) -> Conversation[OpenTransaction]:
        """Begin a transaction, and return it; the first one fences all other producers of the transactional id.

        Raises UnsupportedApiError where the broker has no transactions, and InvalidTransactionTimeoutError.
        """
        if self._fenced is not None:
            raise copied(self._fenced) from self._fenced
        if self._wanted is not None:
            raise errors.ClientError(
                f"{self._whether_committed}: call commit() before the next one begins"
                if self._wanted
                else self._to_be_aborted
            )
        if self.is_open:
            raise errors.ClientError(
                f"a transaction of {self.transactional_id} is open already: one transactional id has one at a time; "
                "abort() ends it"
            )
        self.is_open = True  # from now on, so that no second thread or task begins one
        try:
            if self.epoch is None:
                timeout_ms = max(1, round(self.timeout_seconds * 1000))
                request = messages.InitProducerRequest(self.transactional_id, timeout_ms)
                try:
                    reply = yield from self._patiently(request, messages.InitProducerReply)
                except errors.UnsupportedVersionError as error:
                    raise without_transactions(messages.ExtendTransactionRequest.api) from error
                self.epoch = ProducerEpoch(reply.producer_id, reply.producer_epoch)
            self._end = None
            self._open = transaction = OpenTransaction(self.transactional_id, self.epoch)
        except BaseException:
            self._open, self.is_open = None, False
            raise
        return transaction

    def extending(self, transaction: OpenTransaction, topic: str, partitions: Iterable[int]) -> Conversation[None]:
        """Make partitions part of a transaction, and with them those that are wanted by others.

        One at a time. Nothing is asked where these partitions are part of it already. Raises ClientError if the
        transaction has ended.
        """
        part = transaction.partitions
        new = {(topic, partition) for partition in partitions} - part
        if not new:
            return
        with suppress(IndexError):
            while True:
                new.add(transaction.wanted.popleft())
        for some in pages(sorted(new - part), PARTITIONS_A_REQUEST):
            parts = [messages.TransactionPartition(*each) for each in some]
            request = messages.ExtendTransactionRequest(self.transactional_id, *transaction.epoch, parts)
            yield from self._patiently(request, messages.ExtendTransactionReply, transaction)
            part.update(some)  # whose batches are taken from now on

    def committing_offsets(
        self,
        transaction: OpenTransaction,
        group: str,
        topic: str,
        by_id: OffsetsById,
        member: Member | None,
        instance_id: str | None,
        metadata: str | None = None,
    ) -> Conversation[None]:
        """Commit offsets of a group that count when the transaction is committed.

        Raises a GroupError, and ClientError if the transaction has ended.
        """
        for topic_id, offsets in by_id.items():
            places, of_transaction = sorted(offsets.items()), (self.transactional_id, *transaction.epoch)
            request = commit_request(group, topic, topic_id, places, member, instance_id, metadata, *of_transaction)
            reply = yield from self._patiently(request, messages.CommitOffsetsReply, transaction)
            for result in reply.offsets:
                if result.error is not None:
                    raise self._told(result.error, transaction)

    def ending(self, *, is_commit: bool) -> Conversation[None]:
        """Commit or abort the transaction, unless it has ended so. Raises TransactionAborted if a commit is refused.

        After TransactionUnanswered the same end may be asked for again. Raises ClientError where the other end has come
        or was asked for, or where none began.
        """
        if not self.begin_end(is_commit=is_commit):
            return
        transaction = self._open
        if transaction is None:
            raise errors.ClientError(
                f"the transaction of {self.transactional_id} has not begun yet, or its client is closed"
            )
        transaction.is_ending = True  # first: a call that does not see it is seen by the next line
        if not transaction.may_have_begun:
            self._close(self.epoch, is_commit=is_commit)
            return
        request = messages.EndTransactionRequest(self.transactional_id, *transaction.epoch, is_commit)
        self._wanted = is_commit
        try:
            reply = yield from self._patiently(request, messages.EndTransactionReply)
        except errors.TransactionFenced:
            self._close(None, is_commit=False)
            raise
        except _UNANSWERED as error:
            raise self._unanswered(error, is_commit=is_commit) from error
        except errors.SeglogError as error:
            if error.retriable:
                raise self._unanswered(error, is_commit=is_commit) from error
            self._close(None, is_commit=False)
            if not is_commit:
                return  # the next transaction begins with a new epoch, which aborts what is open
            raise self.aborted(error) from error
        self._close(ProducerEpoch(reply.producer_id, reply.producer_epoch), is_commit=is_commit)

    @property
    def is_to_leave(self) -> bool:
        """Whether something may be open at the broker that nobody has begun to commit."""
        transaction = self._open
        has_begun = transaction is not None and transaction.may_have_begun
        return self.is_open and has_begun and not self._wanted and self._fenced is None

    def leaving(self) -> Conversation[None]:
        """Abort what ``is_to_leave`` by one request: its client is closed. The broker aborts in time where it fails."""
        transaction = self._open
        if transaction is None:
            return
        self._close(None, is_commit=False)
        request = messages.EndTransactionRequest(self.transactional_id, *transaction.epoch, commit=False)
        yield from ask(request, messages.EndTransactionReply)

    @property
    def is_to_be_aborted(self) -> bool:
        """Whether an abort has begun that has not come to its end."""
        return self._wanted is False

    @property
    def is_committing(self) -> bool:
        """Whether the broker was asked for a commit and has not answered: the transaction may be committed."""
        return self._wanted is True

    def begin_end(self, *, is_commit: bool) -> bool:
        """Whether the transaction is still to be committed or aborted; False where that is done. Raises ClientError.

        From then on it takes nothing more from the program. Before a commit, what it has can still be sent. An abort
        that has begun is followed by no commit, however it was interrupted.
        """
        if self._wanted is not None and self._wanted is not is_commit:
            if self._wanted:
                raise errors.ClientError(f"{self._whether_committed}, so it cannot be aborted: call commit() again")
            raise errors.ClientError(self._to_be_aborted)
        if self.is_open:
            transaction = self._open
            if transaction is not None:
                transaction.is_closing = True
                if not is_commit:
                    transaction.is_ending, self._wanted = True, False
            return True
        if self._fenced is not None and is_commit:
            raise copied(self._fenced) from self._fenced
        if self._fenced is None and self._end is not is_commit:
            state = "open" if self._end is None else f"open: the last one was {'committed' if self._end else 'aborted'}"
            raise errors.ClientError(f"no transaction of {self.transactional_id} is {state}")
        return False

    @property
    def open(self) -> OpenTransaction:
        """The open transaction. Raises ClientError if there is none, or if it is ending; TransactionFenced."""
        if self._fenced is not None:
            raise copied(self._fenced) from self._fenced
        if self._wanted is not None:
            raise errors.ClientError(
                f"{self._whether_committed}: call commit()" if self._wanted else self._to_be_aborted
            )
        transaction = self._open
        if transaction is None:
            ended = "" if self._end is None else f": the last one was {'committed' if self._end else 'aborted'}"
            raise errors.ClientError(
                f"no transaction of {self.transactional_id} is open{ended}; each with block of it is one"
            )
        return transaction

    def failed(self, cause: errors.SeglogError) -> errors.SeglogError:
        """The error of a transaction whose records were not all acknowledged, and which was aborted therefore."""
        first = cause.failures[0][3] if isinstance(cause, errors.DeliveryFailed) and cause.failures else cause
        told = self._told(first) if isinstance(first, errors.SeglogError) else cause
        return told if isinstance(told, errors.TransactionFenced) else self.aborted(cause)

    def aborted(self, cause: errors.SeglogError) -> errors.TransactionAborted:
        """The error of a transaction that was aborted because of ``cause``."""
        return errors.TransactionAborted(
            f"the transaction of {self.transactional_id} was aborted, and nothing of it counts: do its work again in a "
            f"new one; the cause: {cause.message}",
            transactional_id=self.transactional_id,
        )

    @property
    def _to_be_aborted(self) -> str:
        return f"the transaction of {self.transactional_id} was to be aborted: call abort() again"

    @property
    def _whether_committed(self) -> str:
        return f"the broker has not answered yet whether the transaction of {self.transactional_id} is committed"

    def _unanswered(self, cause: errors.SeglogError, *, is_commit: bool) -> errors.TransactionUnanswered:
        end = "committed" if is_commit else "aborted"
        return errors.TransactionUnanswered(
            f"the broker did not answer whether the transaction of {self.transactional_id} is {end}: call "
            f"{'commit' if is_commit else 'abort'}() again; the cause: {cause.message}",
            transactional_id=self.transactional_id,
        )

    def _close(self, epoch: ProducerEpoch | None, *, is_commit: bool) -> None:
        transaction = self._open
        if transaction is not None:
            transaction.is_ending = True
        self.epoch, self.is_open, self._wanted, self._end = epoch, False, None, is_commit
        self._open, self._is_doubtful = None, False

    def _told(self, error: errors.SeglogError, late: OpenTransaction | None = None) -> errors.SeglogError:
        """An error of the broker as the program gets it; where the producer is fenced, it stays so.

        ``late`` is the transaction of a request that may come too late: after this producer's own end of it.
        """
        if not isinstance(error, _FENCED):
            return error
        if late is not None and late.is_ending:
            return late.ended()
        what_counts = (
            "whether the commit that was not answered counts, is seen in what was written"
            if self._is_doubtful
            else "nothing of what was open counts"
        )
        self._fenced = fenced = errors.TransactionFenced(
            f"another producer has taken over the transactional id {self.transactional_id}, or its transaction was "
            f"aborted after {seconds_of(self.timeout_seconds)} or by an operator, or the broker was restored from a "
            f"backup: {what_counts}; end this producer, or take the id back by a new client.transaction()",
            transactional_id=self.transactional_id,
        )
        fenced.__cause__ = error
        return fenced

    def _patiently(
        self, request: messages.Request, reply_type: type[MessageT], part_of: OpenTransaction | None = None
    ) -> Conversation[MessageT]:
        """The reply, asked for again for as long as a transaction may take while the broker says to try again.

        The wait is logged from time to time. ``part_of`` is the transaction of which something becomes part by it;
        ClientError is raised when that has ended.
        """

        def asked(pause: float) -> Conversation[MessageT]:
            if part_of is not None:
                part_of.enter()
            try:
                # A commit is repeated here alone, where it is known that there was one before.
                reply, _ = yield from ask(request, reply_type, is_repeatable=not self._wanted, after_seconds=pause)
            except errors.SeglogError as error:
                told = self._told(error, part_of)
                if told is not error:
                    raise told from error
                self._is_doubtful = self._is_doubtful or self._wanted is True
                raise
            return reply

        return (yield from patiently(asked, lambda error: error.retriable, self.timeout_seconds))
