"""A sink's task at ``exactly-once``: all its rows in one transaction, and with them the note that they are written.

The note is an offset that the task's own group commits in the same transaction: its text says which micro-batch it was.
A task that begins looks for it, and writes nothing where it is there. Beginning a transaction fences every earlier
attempt of the task, on whatever machine: what that one has written is aborted, and it cannot commit any more. So of all
attempts at most one counts, wherever a task, the driver or the broker is killed.

The note is about one topic id: of a target that was deleted and made again nothing is noted. It is kept like any
committed offset of a group without members, ``offsets.retention.minutes``.
"""

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Self

import pyarrow as pa

from seglog.arrow.encoding import EncodedBatch
from seglog.client import Client
from seglog.core.accumulator import ProducerBatch
from seglog.core.committed_offsets import look_up_committed
from seglog.core.errors import count_of, seconds_of
from seglog.core.producer_options import ProducerOptions
from seglog.core.transactions import TransactionCore
from seglog.producer import Producer
from seglog_protocol import errors
from seglog_protocol.messages import ExtendTransactionRequest
from seglog_spark.catalog import patiently
from seglog_spark.fingerprints import fingerprints, total
from seglog_spark.marks import OtherRowsError, Writing
from seglog_spark.options import TASKS_TOPIC, WriteOptions
from seglog_spark.tasks import Pending, Task, Written

_BUFFER_BYTES: Final = 16 * 1024 * 1024


def prepare(client: Client) -> None:
    """What the driver does before tasks begin. Raises UnsupportedApiError for a broker without transactions."""
    if ExtendTransactionRequest.api not in client.broker.apis:
        raise errors.UnsupportedApiError(
            f"deliveryGuarantee exactly-once needs transactions, which the broker at {client.server} "
            f"({client.broker.broker}) does not have: give it a newer version, or write effectively-once",
            api=ExtendTransactionRequest.api,
        )
    client.create_topic(TASKS_TOPIC, partitions=1, exist_ok=True)


@dataclass(frozen=True, slots=True)
class Note:
    """The last micro-batch that a task has committed: its rows, in the topic with this id.

    ``content`` is the fingerprint of the rows of a batch job.
    """

    epoch: int
    rows: int
    topic_id: str
    content: int | None = None

    def encode(self) -> str:
        """The text of the committed offset."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})

    @classmethod
    def decode(cls, text: str) -> Self:
        """The note in the text of a committed offset."""
        fields = json.loads(text)
        return cls(int(fields["epoch"]), int(fields["rows"]), str(fields["topic_id"]), fields.get("content"))


class TransactionalTask(Task):
    """Writes all rows of a task, or none, and those of all attempts once."""

    def __init__(self, client: Client, options: WriteOptions, writing: Writing) -> None:
        super().__init__(client, options, None)
        assert options.topic is not None
        self._writing = writing
        self._target = options.topic
        self._name = f"seglog-spark.{options.topic}.{writing.query}.{writing.task}"
        self._topic_id = self.describe(options.topic).id
        self._core = TransactionCore(self._name, options.transaction_seconds)
        self._began = 0.0
        self._producer: Producer | None = None
        self._sent: deque[ProducerBatch] = deque()
        self._look_up()

    def take(self, batch: pa.RecordBatch) -> None:
        """As ``Task.take``, in a transaction that begins with the first row."""
        if batch.num_rows and not self.is_done and self._producer is None:
            self._begin()
        super().take(batch)

    def prepared(self, topic: str, encoded: EncodedBatch) -> Iterator[Pending]:
        """As ``Task.prepared``; the rows of a job are counted into its content."""
        if self.is_job:
            self.written.add_content(total(fingerprints(encoded.records)))
        yield from super().prepared(topic, encoded)

    def send(self, pending: list[Pending]) -> None:
        """Send batches as part of the transaction; returns while some of them are on their way."""
        producer = self._producer
        assert producer is not None or not pending
        if pending:
            partitions = {each.partition for each in pending}
            self.client.converse(self._core.extending(self._core.open, self._target, partitions))
        for each in pending:
            assert producer is not None
            self._sent.append(producer.send_batch(each.partition, each.data, each.rows[1] - each.rows[0]))
            self._settle()

    def finish(self) -> Written:
        """Commit all rows with the note. Raises OtherRowsError where the task has committed other rows before."""
        super().finish()
        if self._producer is None:
            self._check_same_rows()
            return self.written
        self._producer.flush()
        self._settle()
        note = Note(
            self._writing.epoch, self.written.rows, self._topic_id, self.written.content if self.is_job else None
        )
        core = self._core
        place = {"": {0: 0}}
        self.client.converse(
            core.committing_offsets(core.open, self._name, TASKS_TOPIC, place, None, None, note.encode())
        )
        patiently(lambda: self.client.converse(core.ending(is_commit=True)))
        self._producer.close()
        return self.written

    def given_up(self, error: BaseException) -> BaseException:
        """Abort: nothing that was written counts."""
        told = self._core.failed(error) if isinstance(error, errors.DeliveryFailed) else error
        if isinstance(told, errors.TransactionFenced | errors.TransactionAborted):
            told = self._explained(told)
        if self._producer is not None:
            self._producer.abort(timeout=0)
        if self._core.is_open and not (isinstance(error, errors.SeglogError) and error.retriable):
            with suppress(errors.SeglogError):  # the broker aborts it in time, or the next attempt does
                self.client.converse(self._core.ending(is_commit=False))
        return told

    def _begin(self) -> None:
        """Fence earlier attempts, then look once more: one of them may have committed meanwhile."""
        self._began = time.monotonic()
        transaction = self.client.converse(self._core.beginning())
        self._look_up(stable=True)
        if self.is_done:
            self.client.converse(self._core.ending(is_commit=False))  # of nothing
            return
        options = ProducerOptions(
            ack="os",  # the commit makes it durable
            linger_ms=0,
            compression=self.options.codec.name.lower(),
            buffer_bytes=_BUFFER_BYTES,
            delivery_timeout=self.options.transaction_seconds,
            stop_at_failure=True,
            may_create=self.options.create_topic,
            transactional=True,
        )
        self._producer = self.client.make_producer(self._target, options, transaction)

    def _look_up(self, *, stable: bool = False) -> None:
        """See what was committed last for the target there is."""
        committed = patiently(
            lambda: self.client.converse(look_up_committed(self._name, TASKS_TOPIC, [0], stable=stable))
        ).get(0)
        note = None if committed is None else Note.decode(committed.metadata)
        self._note = note if note is not None and note.topic_id == self._topic_id else None
        self.is_done = self._note is not None and self._note.epoch >= self._writing.epoch

    def _settle(self) -> None:
        """Note the results of the oldest batches. Raises the error of one that was refused."""
        while self._producer is not None and self._sent and self._sent[0].is_resolved:
            for piece in self._sent.popleft().pieces():
                if piece.error is not None:
                    # A flush raises the first cause, and not that this one was not sent because of it.
                    self._producer.flush()
                    raise piece.error
                self.written.rows += piece.record_count

    def _check_same_rows(self) -> None:
        """Raise OtherRowsError where the rows are others than this task committed before."""
        note = self._note
        if note is None or note.epoch != self._writing.epoch:
            return
        if note.rows == self.written.rows and note.content in (None, self.written.content):
            return
        what = f"the job {self._writing.query}" if self.is_job else f"micro-batch {note.epoch}"
        raise OtherRowsError(
            f"task {self._writing.task} of {what} committed {count_of(note.rows, 'other row')} to {self._target} when "
            "it was run before, and its rows now are not written: exactly-once needs the same rows in the same tasks "
            "each time, so behind a shuffle the same spark.sql.shuffle.partitions, and spark.sql.adaptive.enabled "
            "false" + ("; other rows need a jobId of their own" if self.is_job else "")
        )

    def _explained(
        self, error: errors.TransactionFenced | errors.TransactionAborted
    ) -> errors.TransactionFenced | errors.TransactionAborted:
        """The end of a transaction, as one who has tasks and options may understand it."""
        limit = self.options.transaction_seconds
        if time.monotonic() - self._began >= limit:
            return errors.TransactionAborted(
                f"this task took longer than transactionTimeout, {seconds_of(limit)}, so its transaction was aborted: "
                "give it a longer one, up to the broker's transaction.max.timeout.ms, or fewer rows",
                transactional_id=self._name,
            )
        if isinstance(error, errors.TransactionAborted):
            return error
        return errors.TransactionFenced(
            "another attempt of this task has taken its place, after a retry, by speculation or by a driver that was "
            "started again: nothing of this one counts",
            transactional_id=self._name,
        )
