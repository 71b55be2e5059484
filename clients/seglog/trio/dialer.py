"""Opening links: connecting, hello, and retries within a timeout."""

import trio

from seglog.address import Address
from seglog.conversations import ask
from seglog.dialing import Attempts, Outage, check_cluster, hello_request, is_unknown_host, refused, saying_hello
from seglog.trio.background import Background
from seglog.trio.link import Link
from seglog.trio.transport import Opener, Transport
from seglog_protocol.errors import NotReachableError
from seglog_protocol.messages import HelloReply


class Dialer:
    """Opens links to one address, through ``opener``; their tasks belong to ``background``.

    With ``cluster_id`` only to a broker with that id.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        background: Background,
        opener: Opener,
        cluster_id: str = "",
        outage: Outage | None = None,
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.cluster_id = cluster_id
        self._background = background
        self._opener = opener
        self._outage = outage or Outage(str(address))

    def bound_to(self, link: Link) -> "Dialer":
        """A dialer for links to the same log directory as ``link``'s."""
        cluster_id = link.hello.cluster_id
        return Dialer(self.address, self.client_id, self._background, self._opener, cluster_id, self._outage)

    @property
    def server(self) -> str:
        """The address as text."""
        return str(self.address)

    async def dial(self, seconds: float) -> Link:
        """A link, after as many attempts as fit into ``seconds``, at least one.

        Raises NotReachableError when none succeeds. Errors that waiting cannot fix are raised at once, for example when
        the server is not a seglog broker, or the host does not exist and has never answered before.
        """
        attempts = Attempts(seconds, trio.current_time())
        while True:
            try:
                return await self.dial_once(attempts.seconds(trio.current_time()))
            except NotReachableError as error:
                if is_unknown_host(error) and not self._outage.has_answered:
                    raise
                delay = attempts.failed(error, trio.current_time())
            await trio.sleep(delay)

    async def dial_once(self, seconds: float) -> Link:
        """One attempt, at most ATTEMPT_SECONDS_MAX long. Raises NotReachableError when a retry may help."""
        began = trio.current_time()
        try:
            link = await self._dial_once(self._outage.attempt_seconds(seconds))
        except NotReachableError as error:
            self._outage.failed(error, began, trio.current_time())
            raise
        self._outage.ended(trio.current_time())
        return link

    async def _dial_once(self, seconds: float) -> Link:
        transport = await self._connected(seconds)
        try:
            link = Link(transport, self.server, self._background)
        except BaseException:
            transport.close()
            raise
        try:
            with saying_hello(self.server):
                link.hello, _ = await link.converse(ask(hello_request(self.client_id), HelloReply), seconds=seconds)
            check_cluster(self.server, self.cluster_id, link.hello)
        except BaseException:
            link.close()
            raise
        return link

    async def _connected(self, seconds: float) -> Transport:
        try:
            with trio.fail_after(seconds):
                return await self._opener(self.address)
        except trio.TooSlowError:
            error: OSError = TimeoutError("timed out")
        except OSError as failure:
            error = failure
        raise refused(self.server, error) from error
