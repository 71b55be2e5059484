"""``BlockingBroker``: a whole broker for tests, and what tests ask of it, each in one line."""

import math
import os
import shutil
import subprocess
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from seglog.client import Client
from seglog.core.delivery import Receipt
from seglog.core.records import Record
from seglog.core.security import SCRAM_MECHANISMS, Mechanism, Secret
from seglog.groups import GroupDescription
from seglog.testing.accounts import ITERATIONS, Password, check_is_not_own, checked, hide
from seglog.testing.configuration import config_of, flags_of, reworded
from seglog.testing.errors import BrokerStoppedError, NotArrivedError, NotPossibleError
from seglog.testing.interrupts import uninterrupted
from seglog.testing.reading import AWAY, SHOWN_MAX, STABLE, WAIT_SECONDS, describe_record, looks
from seglog.testing.runs import Daemon, InThread, connect_exempt
from seglog.testing.security import security_of
from seglog_broker.testing.in_process import NOT_RUNNING
from seglog_broker.testing.request_faults import Fault, RequestFaults, check_seconds
from seglog_broker.texts import counted
from seglog_protocol.errors import SeglogError, UnknownGroupError, UnknownTopicError
from seglog_protocol.messages import Ack, ConfigValue, CreateTopicReply

P = ParamSpec("P")
T = TypeVar("T")

ANY_PORT: Final = "127.0.0.1:0"
MEMORY_DIRECTORY: Final = "/data"
LINGER_MS: Final = 5.0
"""Of several records that are produced at once, which share batches."""

JUMP_SECONDS_MAX: Final = 100 * 365.25 * 86_400

Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]


def _on_loop(
    method: Callable[Concatenate[RequestFaults, P], T], what: str
) -> "Callable[Concatenate[BlockingBroker, P], T]":
    """``method`` of the broker's faults, called on its loop; ``what`` is what a broker without faults cannot have."""

    @wraps(method)
    def call(self: "BlockingBroker", /, *args: P.args, **kwargs: P.kwargs) -> T:
        run = self._in_thread(what)
        return run.call(partial(method, run.faults, *args, **kwargs))

    call.__qualname__ = f"Broker.{method.__name__}"
    return call


class BlockingBroker:
    """A real broker, see ``Broker``."""

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        memory: bool = False,
        process: bool = False,
        seed: int = 0,
        listen: str = ANY_PORT,
        kafka: str = ANY_PORT,
        users: Mapping[str, Password] | None = None,
        admins: Iterable[str] = (),
        tls: bool = False,
        config: Mapping[str, object] | None = None,
        **keys: object,
    ) -> None:
        users = hide(users)
        if memory and (process or directory is not None):
            raise TypeError("memory=True goes with neither process=True nor a directory")
        if not isinstance(seed, int):
            raise TypeError(f"seed is a whole number, not {seed!r}")
        given = None if directory is None else os.fspath(directory)
        if given == "":
            raise ValueError("directory is empty: name one, or leave it out for a temporary one")
        flags = flags_of(config or {}, keys)
        self._security = security_of(users, admins, tls, listen, kafka)
        self._flags = self._security.added_to(flags)
        self._listen, self._kafka = listen, kafka
        config_of(self._flags, MEMORY_DIRECTORY, *self._listeners())  # raises here for what cannot be used
        self._lock = threading.RLock()  # around start and stop
        self._owner = os.getpid()
        self._clients: list[Client] = []  # none or one, see ``client``
        self._run: InThread | Daemon = (
            Daemon() if process else InThread(in_memory=memory, is_temporary=directory is None, seed=seed)
        )
        self._temporary = None if memory or directory is not None else _Temporary()
        scratch = MEMORY_DIRECTORY if self._temporary is None else f"{self._temporary.path}/data"
        self.directory: str = given or scratch
        """The log directory."""
        self._forgotten = weakref.finalize(self, _end_forgotten, self._owner, self._run, self._clients, self._temporary)

    def __repr__(self) -> str:
        state = f"at {self.address}, for Kafka's clients at {self.kafka_address}" if self.is_running else "stopped"
        return f"<seglog.testing.Broker {state}>"

    # --- Its life -----------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._owner == os.getpid() and self._run.is_running

    @property
    def address(self) -> str:
        """``HOST:PORT`` for seglog's clients; the same after a stop and a start."""
        return self._listen

    @property
    def kafka_address(self) -> str:
        """``HOST:PORT`` for Kafka's clients (``bootstrap.servers``); the same after a stop and a start."""
        return self._kafka

    @property
    def server(self) -> str:
        """The address for seglog's clients as a URL: ``seglogs://HOST:PORT`` with TLS, else ``seglog://HOST:PORT``."""
        return self._security.url(self._listen)

    @property
    def ca(self) -> str | None:
        """The file of the authority that has signed the broker's certificate, in PEM; None without TLS."""
        return self._security.ca

    @property
    def log(self) -> list[dict[str, Any]]:
        """What it has logged: each line an event and its facts. The newest 10,000 lines are kept."""
        return self._run.lines()

    @property
    def pid(self) -> int:
        """The process of a broker that has one, for signals. Raises NotPossibleError for any other."""
        if isinstance(self._run, InThread):
            raise NotPossibleError("this broker runs in a thread of this process: Broker(process=True) has a process")
        return self._run.pid

    def start(self) -> None:
        """Start it, with the data that is there, and return when it serves. Does nothing where it runs.

        Raises LogDirectoryError, ListenError.
        """
        with self._lock:
            self._check_open()
            if self.is_running:
                return
            try:
                if self._security.accounts is not None:
                    self._security.accounts.write(self._run.fs, self.directory)
                self._listen, self._kafka = self._run.start(self._flags, self.directory, *self._listeners())
            except (SeglogError, BrokerStoppedError) as error:
                raise reworded(error) from None

    def stop(self) -> None:
        """Stop it in order. The data stays, ``start`` goes on with it. Does nothing where it does not run."""
        self._end(self._run.stop)

    def restart(self) -> None:
        """Stop it in order, and start it."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """End it as SIGKILL does: nothing is answered any more, what was written is found by the next ``start``."""
        self._check_running()
        self._end(self._run.crash)

    def power_cut(self, *, random: bool = False) -> None:
        """End it as a power cut does: what was never synced is gone; with ``random`` any part of that.

        Raises NotPossibleError for a broker that is not in memory.
        """
        self._check_running()
        run = self._in_thread("a power cut", "Broker(memory=True)")
        self._end(lambda: run.power_cut(random=random))

    def close(self) -> None:
        """Stop it, and remove the temporary directory. Idempotent."""
        if self._owner != os.getpid() or not self._forgotten.alive:
            return
        failure: Exception | None = None
        try:
            self.stop()
        except Exception as error:  # noqa: BLE001 - raised below; an interrupt leaves the rest to the next close
            failure = error
        if self._temporary is not None:
            uninterrupted(self._temporary.remove)
        self._forgotten.detach()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listeners(self) -> tuple[str, str]:
        return self._security.listener(self._listen), self._security.listener(self._kafka)

    def _end(self, end: Callable[[], None]) -> None:
        def end_now() -> None:
            with self._lock:
                try:
                    while self._clients:
                        self._clients.pop().abort()  # what waits for an ack would have it wait, too
                finally:
                    if self._owner == os.getpid():
                        end()

        uninterrupted(end_now)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise BrokerStoppedError(
                f"this broker belongs to process {self._owner}, not to its child {os.getpid()}: make one there"
            )

    def _check_open(self) -> None:
        self._check_owner()
        if not self._forgotten.alive:
            raise BrokerStoppedError("this broker is closed: make another one")

    def _check_running(self) -> None:
        self._check_open()
        if not self.is_running:
            raise BrokerStoppedError(NOT_RUNNING)

    # --- In one line --------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """A client of the broker that meets none of its faults, for what tests prepare and look at.

        Raises BrokerStoppedError.
        """
        with self._lock:
            self._check_running()
            if not self._clients:
                faults = self._run.faults if isinstance(self._run, InThread) else None
                self._clients.append(connect_exempt(self._security.access(self._listen), faults))
            return self._clients[0]

    def create_topic(self, /, name: str, partitions: int = 1, **config: ConfigValue) -> CreateTopicReply:
        """Make a topic; ``retention_ms=1000`` is its ``retention.ms``. Raises TopicExistsError, InvalidConfigError."""
        return self.client.create_topic(name, partitions, {key.replace("_", "."): v for key, v in config.items()})

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
        ack: Ack = "os",
    ) -> list[Receipt]:
        """Append records, and return their receipts, in order. Their timestamp is the broker's time, if none is given.

        A missing topic is made where the broker makes topics (``auto.create.topics.enable``), else UnknownTopicError.
        """
        client = self.client
        pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        when = self._run.now_ms() if timestamp is None else timestamp
        try:
            with client.producer(topic, ack=ack, linger_ms=0 if len(values) == 1 else LINGER_MS) as producer:
                more: dict[str, Any] = {"key": key, "headers": pairs, "partition": partition, "timestamp": when}
                sent = [producer.send(value, **more) for value in values]
            return [delivery.result() for delivery in sent]
        except SeglogError as error:
            if client in self._clients:
                raise
            raise BrokerStoppedError("the broker was stopped before it had answered") from error

    def records(self, topic: str) -> list[Record]:
        """All records that ``topic`` holds now, without those of aborted transactions. Raises UnknownTopicError."""
        with self.client.consumer(
            topic, start="earliest", on_out_of_range="earliest", isolation="read_committed"
        ) as consumer:
            return list(consumer)

    def wait_for(
        self,
        topic: str,
        count: int = 1,
        timeout: float = WAIT_SECONDS,
        *,
        where: Callable[[Record], bool] | None = None,
    ) -> list[Record]:
        """The records of ``topic``, as soon as there are ``count`` of them for which ``where`` holds.

        The topic need not exist yet. It goes on over stops and starts of the broker. Raises NotArrivedError, an
        AssertionError, after ``timeout`` seconds.
        """
        __tracebackhide__ = True  # pytest shows the line of the test and the sentence
        records: list[Record] = []
        found: list[Record] = []
        exists = False
        for _ in looks(timeout, self._check_open):
            with suppress(*AWAY, UnknownTopicError):  # its first record may make the topic
                records, exists = self.records(topic), True
            found = [record for record in records if where is None or where(record)]
            if len(found) >= count and exists:
                return found
        wanted = f"{counted(count, 'record')} {'was' if count == 1 else 'were'} waited for"
        if not exists:
            raise NotArrivedError(f"there is no topic {topic!r} after {timeout:g} s; {wanted}")
        of_these = "" if where is None else f", {len(found)} of those that were waited for"
        text = f"{topic} has {counted(len(records), 'record')} after {timeout:g} s{of_these}; {wanted}"
        if records:
            text += ". The last:\n" + "\n".join(map(describe_record, records[-SHOWN_MAX:]))
        raise NotArrivedError(text)

    def wait_for_group(
        self, group: str, members: int = 1, timeout: float = WAIT_SECONDS, *, after: int = -1
    ) -> GroupDescription:
        """The group, as soon as so many members share its partitions; ``after``: in a later generation than that.

        The group need not exist yet. Raises NotArrivedError, an AssertionError, after ``timeout`` seconds.
        """
        __tracebackhide__ = True
        found: GroupDescription | None = None
        for _ in looks(timeout, self._check_open):
            found = None
            with suppress(*AWAY, UnknownGroupError):  # it begins with its first member
                found = self.client.describe_group(group)
            is_shared = found is not None and found.group.state == STABLE and found.group.generation > after
            if found is not None and is_shared and len(found.members) == members:
                return found
        wanted = "1 member that shares" if members == 1 else f"{members} members that share"
        wanted += " its partitions" if after < 0 else f" its partitions, after generation {after},"
        wanted += " was waited for" if members == 1 else " were waited for"
        if found is None:
            raise NotArrivedError(f"there is no group {group!r} after {timeout:g} s; {wanted}")
        state, generation = found.group.state, found.group.generation
        raise NotArrivedError(
            f"group {group!r} is {state} after {timeout:g} s, in generation {generation}, with "
            f"{counted(len(found.members), 'member')}; {wanted}"
        )

    # --- Accounts -----------------------------------------------------------------------------------------------------

    def client_config(self, user: str | None = None) -> dict[str, Any]:
        """The arguments of ``seglog.connect`` and ``seglog.trio.connect`` for this broker, as the account ``user``.

        None is the account of ``client``, which administers, or nobody where there are no accounts. Raises
        UnknownUserError, NotPossibleError.
        """
        return self._security.client_config(self._listen, user)

    def kafka_config(self, user: str | None = None, mechanism: Mechanism = SCRAM_MECHANISMS[0]) -> dict[str, str]:
        """The arguments of kafka-python's clients for this broker, as ``client_config``.

        The password is among them as text, which its ``repr`` does not show.
        """
        return self._security.kafka_config(self._kafka, user, mechanism)

    def create_user(self, name: str, password: Password) -> None:
        """Make an account. Raises UserExistsError, NotPossibleError, and ValueError for what it cannot have."""
        password = Secret(password)
        accounts, known = self._security.needed_accounts(), checked(name, password)
        self.client.create_user(name, known, iterations=ITERATIONS)
        accounts.remember(name, known)

    def set_password(self, name: str, password: Password) -> None:
        """Give an account another password. Raises UnknownUserError, NotPossibleError, ValueError."""
        password = Secret(password)
        accounts, known = self._security.needed_accounts(), checked(name, password)
        self.client.set_password(name, known, iterations=ITERATIONS)
        accounts.remember(name, known)

    def delete_user(self, name: str) -> None:
        """Delete an account. Raises UnknownUserError, NotPossibleError, ValueError for that of ``client``."""
        accounts = self._security.needed_accounts()
        check_is_not_own(name)
        self.client.delete_user(name)
        accounts.forget(name)

    # --- Faults -------------------------------------------------------------------------------------------------------

    def full_disk(self, full: bool = True) -> None:
        """The disk has no room from now on, or with ``full=False`` has room again."""
        self._in_thread("a full disk").full_disk(is_full=full)

    def slow_disk(self, seconds: float) -> None:
        """Every sync takes ``seconds`` longer, and with it every ack at disk; 0: no longer."""
        check_seconds("the delay of a sync is", seconds)
        self._in_thread("a slow disk").slow_disk(seconds)

    def jump_clock(self, seconds: float, *, wall_only: bool = False) -> None:
        """Move the broker's clocks ahead: what is due by then, such as retention, has been done when it returns.

        Members of groups have been silent for so long, and idle connections are closed; living clients join again.
        With ``wall_only`` the time of day alone jumps, as when a clock is set wrong: the broker does not trust it, and
        deletes nothing by it until it has held for an hour. ``seconds`` may be negative then.
        """
        check_seconds("a jump of a clock is", seconds, -math.inf)
        if abs(seconds) > JUMP_SECONDS_MAX:
            raise ValueError(f"a clock jumps by a century at most, {JUMP_SECONDS_MAX:,.0f} s, not by {seconds:,.0f}")
        if seconds < 0 and not wall_only:
            raise ValueError("time does not run backwards: wall_only=True sets the time of day back")
        self._in_thread("another time").move_clock(seconds, wall_only=wall_only)

    cut_connections = _on_loop(RequestFaults.cut_connections, "cut connections")
    refuse = _on_loop(RequestFaults.refuse, "refused connections")
    delay = _on_loop(RequestFaults.delay, "a delay")
    fail_next = _on_loop(RequestFaults.fail_next, "a failing request")
    lose_next_ack = _on_loop(RequestFaults.lose_next_ack, "a lost ack")
    expire_session = _on_loop(RequestFaults.expire_session, "an expired session")
    rebalance = _on_loop(RequestFaults.rebalance, "a rebalance")

    @property
    def pending_faults(self) -> list[Fault]:
        """The faults of requests that were asked for, and that too few requests have met so far."""
        return [] if isinstance(self._run, Daemon) else self._run.faults.pending

    def heal(self) -> None:
        """End all faults: of requests, of connections and of the disk. Clocks stay as they are."""
        run = self._run
        if isinstance(run, Daemon):
            return  # it has none
        if self.is_running:
            run.call(run.faults.heal)
            self.slow_disk(0)
        else:
            run.faults.heal()
        self.full_disk(False)

    def _in_thread(self, what: str, instead: str = "Broker()") -> InThread:
        self._check_owner()
        if isinstance(self._run, Daemon):
            raise NotPossibleError(f"{what} cannot be had with process=True, only in this process: {instead}")
        return self._run


class _Temporary:
    """A directory that goes with this process, however that ends: a shell reads until then, and removes it."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="seglog-")
        command = ["/bin/sh", "-c", 'read -r _; rm -rf -- "$0"', self.path]
        self._shell = subprocess.Popen(  # noqa: S603 - of ours
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._shell.communicate()


def _end_forgotten(owner: int, run: InThread | Daemon, clients: list[Client], temporary: _Temporary | None) -> None:
    """End a broker that nobody has closed, when it is garbage or the interpreter exits."""
    if owner != os.getpid():
        return
    try:
        if run.is_running:
            warnings.warn("a seglog.testing.Broker was not closed", ResourceWarning, stacklevel=2)
            for client in clients:
                client.abort()
            run.stop()
    finally:
        if temporary is not None:
            temporary.remove()
