"""The blocking client: topics, offsets, and the creation of producers and consumers."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from seglog.access import Access
from seglog.core.connection import Reply
from seglog.core.conversations import Ask, Conversation, ask, converse
from seglog.core.dialing import CLIENT_ID, CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from seglog.core.security import Secret
from seglog.core.wrong_face import in_our_words, refuse_async_block
from seglog.link import Dialer, Link, OwnerProcess
from seglog.settings import target_given
from seglog.verbs import Blocking, ClientVerbs, ExplainVerbs
from seglog_protocol import errors, messages
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.scram import ITERATIONS_DEFAULT

if TYPE_CHECKING:
    import ssl
    from os import PathLike

    from seglog.consumer import Consumer
    from seglog.core.consumer_options import ConsumerOptions, GroupOptions
    from seglog.core.producer_options import ProducerOptions
    from seglog.core.queue_session import QueueOptions
    from seglog.core.security import Mechanism, Tls
    from seglog.core.transactions import OpenTransaction, TransactionCore
    from seglog.group_consumer import GroupConsumer
    from seglog.producer import Producer
    from seglog.queue import Queue
    from seglog.transaction import Extend, Transaction

ResultT = TypeVar("ResultT")
ChildT = TypeVar("ChildT", bound="Producer | Consumer | Queue")


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
    dialer = Dialer(Access(target), client_id or CLIENT_ID)
    return Client(dialer, dialer.dial(connect_timeout), connect_timeout, request_timeout)


class Client(Blocking, ClientVerbs["Producer", "Transaction", "Consumer", "GroupConsumer", "Queue"]):
    """Client of one broker, made by ``connect``. Thread-safe, but not usable in a forked child.

    Its own calls share one connection; every producer and consumer opens another, so that long polls, large fetches and
    acknowledgements do not block each other. Closing the client closes them.
    """

    _dialer: Dialer

    def __init__(self, dialer: Dialer, link: Link, connect_timeout: float, request_timeout: float) -> None:
        super().__init__()
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
        self._children: set[weakref.ref[Producer | Consumer | Queue]] = set()

    def _greeted(self) -> Link:
        return self._link

    def ping(self) -> messages.HelloReply:
        """The broker's identity and health, asked over a new connection."""
        link = self._dial()
        try:
            return link.hello
        finally:
            link.close()

    @property
    def explain(self) -> "Explain":
        """Explanations of seeks, segments and configuration."""
        return Explain(self)

    # --- Reading and writing ------------------------------------------------------------------------------------------

    def _producer(self, topic: str, options: "ProducerOptions") -> "Producer":
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

    def _transaction(self, core: "TransactionCore", options: "ProducerOptions") -> "Transaction":
        from seglog.core.transactions import let_go  # noqa: PLC0415 - few programs have transactions
        from seglog.transaction import Transaction  # noqa: PLC0415 - as above

        def make_producer(topic: str, part_of: "OpenTransaction", extend: "Extend") -> "Producer":
            for producer in let_go(self._of_transactions):
                producer.abort_now()  # so that a transaction object for each block leaves no connections behind
            return self.make_producer(topic, options, part_of, extend)

        transaction = Transaction(core, self.converse, make_producer)
        self._of_transactions[weakref.ref(transaction)] = transaction.producers
        return transaction

    def _consumer(self, topic: str, options: "ConsumerOptions") -> "Consumer":
        from seglog.consumer import Consumer  # noqa: PLC0415 - with all its codecs

        return self._adopted(lambda link: Consumer(self._dialer, link, topic, options, timeout=self._request_timeout))

    def _group_consumer(self, topic: str, options: "GroupOptions") -> "GroupConsumer":
        from seglog.group_consumer import GroupConsumer  # noqa: PLC0415 - and with Kafka's messages

        return self._adopted(
            lambda link: GroupConsumer(self._dialer, link, topic, options, timeout=self._request_timeout)
        )

    def _queue(self, options: "QueueOptions") -> "Queue":
        from seglog.queue import Queue  # noqa: PLC0415 - and with Kafka's messages

        return self._adopted(lambda link: Queue(self._dialer, link, options, timeout=self._request_timeout))

    def _adopted(self, make: Callable[[Link], ChildT]) -> ChildT:
        try:
            child = self._made(make)
        except errors.ConnectionLostError:  # repeatable: the broker may just have restarted
            child = self._made(make)
        with self._adopting:
            if not self._is_closed:
                self._children.add(weakref.ref(child, self._children.discard))
                return child
        child.close()
        raise errors.ClientClosedError("the client is closed")

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
        except errors.ConnectionLostError:
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
            raise errors.ClientClosedError("the client is closed")

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

    def _close(
        self, close_child: "Callable[[Producer | Consumer | Queue], None]", *, ends_transactions: bool = True
    ) -> None:
        if self._owner.is_here:
            with self._adopting:
                if self._is_closed:
                    return
                self._is_closed = True
        else:
            self._is_closed = True
        children = [child for kept in list(self._children) if (child := kept()) is not None]
        first: errors.SeglogError | None = None
        try:
            if ends_transactions and self._owner.is_here:
                self._end_transactions()
            for child in children:
                try:
                    close_child(child)
                except errors.SeglogError as error:
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(lambda child: child.__exit__(kind, error, trace))

    # --- Accounts -----------------------------------------------------------------------------------------------------

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


class Explain(Blocking, ExplainVerbs):
    """``client.explain``: explanations from the broker."""
