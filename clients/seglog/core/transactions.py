"""Transactions of one transactional id, without socket, thread or clock, shared by all faces of the client.

Three errors tell what a program can do: TransactionAborted (nothing of it counts: do the work again in a new one),
TransactionUnanswered (the broker did not answer: ask again for the same end), TransactionFenced (another producer has
the transactional id: stop).
"""

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final, TypeVar

from seglog.core.accumulator import ProducerEpoch
from seglog.core.conversations import Conversation, ask, pages
from seglog.core.errors import copied, seconds_of
from seglog.core.group_membership import Member
from seglog.core.retries import backoff_seconds
from seglog.core.transaction_admin import without_transactions
from seglog_protocol import messages
from seglog_protocol.errors import (
    AuthenticationError,
    ClientError,
    DeliveryFailed,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    ProtocolError,
    SeglogError,
    TransactionAborted,
    TransactionFenced,
    TransactionUnanswered,
    UnsupportedVersionError,
)
from seglog_protocol.messages import MessageT

TIMEOUT_SECONDS: Final = 60.0
"""How long a transaction may take by default: Kafka's ``transaction.timeout.ms`` of producers."""

END_SECONDS: Final = 5.0
"""How long a block that is cancelled, or a client that is closed, waits for the end of a transaction."""

ID_BYTES_MAX: Final = 32_767
"""The limit of a transactional id in UTF-8: that of a string in Kafka's records."""

PARTITIONS_A_REQUEST: Final = 1_000
"""The most partitions that one request makes part of a transaction: its header has a limit."""

_FENCED: Final = ProducerFencedError, InvalidProducerEpochError, InvalidProducerIdMappingError
_UNANSWERED: Final = ClientError, ProtocolError, AuthenticationError
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


class TransactionCore:
    """The producer of a transactional id: its epoch, and what is part of its open transaction.

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
        self._partitions: set[tuple[str, int]] = set()
        self._wanted_partitions: deque[tuple[str, int]] = deque()
        self._may_have_begun = False  # at the broker, by a request that was answered or not
        self._fenced: TransactionFenced | None = None
        self._is_doubtful = False  # whether a commit was asked for by a request that was not answered
        self._wanted: bool | None = None  # the end that was asked for, and not answered: whether it is a commit
        self._end: bool | None = None  # how the last transaction has ended, likewise

    def beginning(self) -> Conversation[ProducerEpoch]:
        """Begin a transaction; the first one fences all other producers of the transactional id.

        Raises UnsupportedApiError where the broker has no transactions, and InvalidTransactionTimeoutError.
        """
        if self._fenced is not None:
            raise copied(self._fenced) from self._fenced
        if self._wanted is False:
            yield from self.ending(is_commit=False)
        if self._wanted:
            raise ClientError(f"{self._whether_committed}: call commit() before the next one begins")
        if self.is_open:
            raise ClientError(
                f"a transaction of {self.transactional_id} is open already: one transactional id has one at a time"
            )
        self.is_open = True  # from now on, so that no second thread or task begins one
        try:
            if self.epoch is None:
                self.epoch = yield from self._new_epoch()
        except BaseException:
            self.is_open = False
            raise
        self._end = None
        return self.epoch

    def _new_epoch(self) -> Conversation[ProducerEpoch]:
        timeout_ms = max(1, round(self.timeout_seconds * 1000))
        request = messages.InitProducerRequest(self.transactional_id, timeout_ms)
        try:
            reply = yield from self._patiently(request, messages.InitProducerReply)
        except UnsupportedVersionError as error:
            raise without_transactions(messages.ExtendTransactionRequest.api) from error
        return ProducerEpoch(reply.producer_id, reply.producer_epoch)

    def is_part(self, topic: str, partition: int) -> bool:
        """Whether a partition is part of the open transaction, so that its batches may be sent."""
        return (topic, partition) in self._partitions

    def want(self, topic: str, partitions: Iterable[int]) -> None:
        """Have the next ``extending``, whoever asks for it, take these partitions along. Any thread may call this."""
        self._wanted_partitions.extend((topic, partition) for partition in partitions)

    def extending(self, topic: str, *partitions: int) -> Conversation[None]:
        """Make partitions part of the open transaction, and with them those that are wanted by others.

        One at a time. Nothing is asked where these partitions are part of it already.
        """
        part = self._partitions  # another one when this transaction has ended
        new = {(topic, partition) for partition in partitions} - part
        if not new:
            return
        producer_id, epoch = self.open_epoch
        with suppress(IndexError):
            while True:
                new.add(self._wanted_partitions.popleft())
        self._may_have_begun = True
        for some in pages(sorted(new - part), PARTITIONS_A_REQUEST):
            parts = [messages.TransactionPartition(*each) for each in some]
            request = messages.ExtendTransactionRequest(self.transactional_id, producer_id, epoch, parts)
            yield from self._patiently(request, messages.ExtendTransactionReply, ProducerEpoch(producer_id, epoch))
            part.update(some)  # whose batches are taken from now on

    def committing_offsets(
        self,
        group: str,
        topic: str,
        by_id: OffsetsById,
        member: Member | None,
        instance_id: str | None,
        metadata: str | None = None,
    ) -> Conversation[None]:
        """Commit offsets of a group that count when the transaction is committed. Raises a GroupError."""
        producer_id, epoch = self.open_epoch
        for topic_id, offsets in by_id.items():
            self._may_have_begun = True
            request = messages.CommitOffsetsRequest(
                group,
                [
                    messages.CommitOffset(topic, partition, offset, metadata=metadata)
                    for partition, offset in sorted(offsets.items())
                ],
                None if member is None else member.member_id,
                None if member is None else member.generation,
                instance_id,
                {topic: topic_id} if topic_id else None,
                self.transactional_id,
                producer_id,
                epoch,
            )
            reply = yield from self._patiently(request, messages.CommitOffsetsReply)
            for result in reply.offsets:
                if result.error is not None:
                    raise self._told(result.error)

    def ending(self, *, is_commit: bool) -> Conversation[None]:
        """Commit or abort the transaction, unless it has ended so. Raises TransactionAborted if a commit is refused.

        After TransactionUnanswered the same end may be asked for again. Raises ClientError where the other end has come
        or was asked for, or where none began.
        """
        if not self.is_to_end(is_commit=is_commit):
            return
        if not self._may_have_begun:
            self._close(self.epoch, is_commit=is_commit)
            return
        producer_id, epoch = self.open_epoch
        request = messages.EndTransactionRequest(self.transactional_id, producer_id, epoch, is_commit)
        self._wanted = is_commit
        try:
            reply = yield from self._patiently(request, messages.EndTransactionReply)
        except TransactionFenced:
            self._close(None, is_commit=False)
            raise
        except _UNANSWERED as error:
            raise self._unanswered(error, is_commit=is_commit) from error
        except SeglogError as error:
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
        return self.is_open and self._may_have_begun and not self._wanted and self._fenced is None

    def leaving(self) -> Conversation[None]:
        """Abort what ``is_to_leave`` by one request: its client is closed. The broker aborts in time where it fails."""
        producer_id, epoch = self.open_epoch
        self._close(None, is_commit=False)
        request = messages.EndTransactionRequest(self.transactional_id, producer_id, epoch, commit=False)
        yield from ask(request, messages.EndTransactionReply)

    @property
    def is_committing(self) -> bool:
        """Whether the broker was asked for a commit and has not answered: the transaction may be committed."""
        return self._wanted is True

    def is_to_end(self, *, is_commit: bool) -> bool:
        """Whether the transaction is still to be committed or aborted; False where that is done. Raises ClientError."""
        if self._wanted is not None and self._wanted is not is_commit:
            if self._wanted:
                raise ClientError(f"{self._whether_committed}, so it cannot be aborted: call commit() again")
            raise ClientError(f"the transaction of {self.transactional_id} was to be aborted: call abort() again")
        if self.is_open:
            return True
        if self._fenced is not None and is_commit:
            raise copied(self._fenced) from self._fenced
        if self._fenced is None and self._end is not is_commit:
            state = "open" if self._end is None else f"open: the last one was {'committed' if self._end else 'aborted'}"
            raise ClientError(f"no transaction of {self.transactional_id} is {state}")
        return False

    @property
    def open_epoch(self) -> ProducerEpoch:
        """The producer's id and epoch. Raises ClientError if no transaction is open, TransactionFenced."""
        if self._fenced is not None:
            raise copied(self._fenced) from self._fenced
        if self.epoch is None or not (self.is_open or self._wanted is not None):
            ended = "" if self._end is None else f": the last one was {'committed' if self._end else 'aborted'}"
            raise ClientError(f"no transaction of {self.transactional_id} is open{ended}; each with block of it is one")
        return self.epoch

    def sent_too_late(self, topics: list[str]) -> ClientError:
        """The error of a transaction that begins while records that were sent at the end of the one before wait."""
        return ClientError(
            f"records were sent to {', '.join(topics)} while the transaction of {self.transactional_id} before this "
            "one ended: they are part of none, and dropped; end a transaction when everything in it has been sent"
        )

    def failed(self, cause: SeglogError) -> SeglogError:
        """The error of a transaction whose records were not all acknowledged, and which was aborted therefore."""
        first = cause.failures[0][3] if isinstance(cause, DeliveryFailed) and cause.failures else cause
        told = self._told(first) if isinstance(first, SeglogError) else cause
        return told if isinstance(told, TransactionFenced) else self.aborted(cause)

    def aborted(self, cause: SeglogError) -> TransactionAborted:
        """The error of a transaction that was aborted because of ``cause``."""
        return TransactionAborted(
            f"the transaction of {self.transactional_id} was aborted, and nothing of it counts: do its work again in a "
            f"new one; the cause: {cause.message}",
            transactional_id=self.transactional_id,
        )

    @property
    def _whether_committed(self) -> str:
        return f"the broker has not answered yet whether the transaction of {self.transactional_id} is committed"

    def _unanswered(self, cause: SeglogError, *, is_commit: bool) -> TransactionUnanswered:
        end = "committed" if is_commit else "aborted"
        return TransactionUnanswered(
            f"the broker did not answer whether the transaction of {self.transactional_id} is {end}: call "
            f"{'commit' if is_commit else 'abort'}() again; the cause: {cause.message}",
            transactional_id=self.transactional_id,
        )

    def _close(self, epoch: ProducerEpoch | None, *, is_commit: bool) -> None:
        self.epoch, self.is_open, self._wanted, self._end = epoch, False, None, is_commit
        self._partitions, self._wanted_partitions = set(), deque()
        self._may_have_begun = self._is_doubtful = False

    def _told(self, error: SeglogError, asked: ProducerEpoch | None = None) -> SeglogError:
        """An error of the broker as the program gets it; where the producer is fenced, it stays so.

        ``asked`` is the epoch of a request that may come too late: after this producer's own end of the transaction.
        """
        if not isinstance(error, _FENCED):
            return error
        if None not in {asked, self.epoch} and asked != self.epoch:
            return ClientError(f"the transaction of {self.transactional_id} has ended meanwhile")
        what_counts = (
            "whether the commit that was not answered counts, is seen in what was written"
            if self._is_doubtful
            else "nothing of what was open counts"
        )
        self._fenced = fenced = TransactionFenced(
            f"another producer has taken over the transactional id {self.transactional_id}, or its transaction was "
            f"aborted after {seconds_of(self.timeout_seconds)} or by an operator: {what_counts}; end this producer, or "
            "take the id back by a new client.transaction()",
            transactional_id=self.transactional_id,
        )
        fenced.__cause__ = error
        return fenced

    def _patiently(
        self, request: messages.Request, reply_type: type[MessageT], asked: ProducerEpoch | None = None
    ) -> Conversation[MessageT]:
        """The reply, asked for again for as long as a transaction may take while the broker says to try again.

        ``asked`` as of ``_told``.
        """
        pause = waited = 0.0
        for attempt in count():
            try:
                # A commit is repeated here alone, where it is known that there was one before.
                reply, _ = yield from ask(request, reply_type, is_repeatable=not self._wanted, after_seconds=pause)
            except SeglogError as error:
                told = self._told(error, asked)
                if told is not error:
                    raise told from error
                self._is_doubtful = self._is_doubtful or self._wanted is True
                pause = backoff_seconds(attempt)
                waited += pause
                if not error.retriable or waited > self.timeout_seconds:
                    raise
            else:
                return reply
        raise AssertionError("there is always another attempt")
