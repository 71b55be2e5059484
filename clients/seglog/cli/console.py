"""``seglog console``: pages that draw a log, for a browser."""

import ipaddress
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from seglog.cli.arguments import Options
from seglog.cli.commands import FILE, Command, Option, flag
from seglog.cli.common import open_client, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.option_types import LISTEN_ADDRESS
from seglog.cli.terminal import print_line
from seglog_protocol.errors import AuthenticationError, SeglogError
from seglog_protocol.extras import missing

if TYPE_CHECKING:
    from seglog_console.console import Console

LISTEN: Final = "127.0.0.1:9180"
NICENESS: Final = 10
"""How far below a broker on the same machine it runs."""


def run(options: Options) -> int:
    """Serve pages until a signal comes."""
    if (error := missing("seglog console", "console")) is not None:
        warn(str(error))
        return FAILED
    host, _, port = options.listen.rpartition(":")
    has_accounts = _has_accounts(options, host.strip("[]"))
    import uvicorn

    from seglog_console.app import application
    from seglog_console.console import Console

    names = {"localhost", host.strip("[]"), *options.host_name}
    scheme = "https" if options.tls_certificate else "http"
    shown = "localhost" if _is_loopback(host.strip("[]")) else next(iter(options.host_name), host)

    def announce(token: str) -> None:
        where = f"{scheme}://{shown}:{console.port}"
        if has_accounts:
            print_line(f"browsers log in at {where}")
        elif console.has_token:
            print_line(f"a browser is let in once by {where}/enter?token={token}")
        else:
            print_line(f"pages are at {where}")
        sys.stdout.flush()  # a program may read it behind a pipe

    console = Console(
        options.server,
        options.security,
        hosts=frozenset(names | {"127.0.0.1", "::1"}),
        port=int(port),
        has_token=not options.no_token,
        has_tls=scheme == "https",
        is_read_only=options.read_only,
        is_local=options.local,
        announce=announce,
    )
    os.nice(NICENESS)
    return _serve(uvicorn, application(console), console, host.strip("[]"), options)


def _serve(uvicorn: Any, app: Any, console: "Console", host: str, options: Options) -> int:
    """Bind first, so that what is printed is true."""
    import asyncio

    config = uvicorn.Config(
        app,
        host=host,
        port=console.port,
        access_log=False,  # addresses have tokens
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        ssl_certfile=options.tls_certificate,
        ssl_keyfile=options.tls_key,
        timeout_graceful_shutdown=1,
    )
    try:
        listener = config.bind_socket()
    except SystemExit:  # it has said why
        return FAILED
    listener.listen()  # who reads the address may come at once
    console.port = listener.getsockname()[1]
    console.announce(console.sessions.token)

    class Server(uvicorn.Server):  # type: ignore[misc]
        def handle_exit(self, sig: int, frame: object) -> None:
            asyncio.get_running_loop().call_soon_threadsafe(console.end)
            super().handle_exit(sig, frame)

    with suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])
    return OK


def _has_accounts(options: Options, host: str) -> bool:
    """Whether the broker wants accounts; False where it is away.

    Raises UsageError for what would show a broker to more people than was meant.
    """
    if not _is_loopback(host) and not options.tls_certificate and not options.without_tls:
        raise UsageError(
            f"--listen {options.listen} can be reached from other machines, so passwords and records would cross the "
            "network as they are: give --tls-certificate and --tls-key, listen on 127.0.0.1 behind a proxy, or add "
            "--without-tls where only a trusted network reaches it, as in a container"
        )
    if "user" in options.security and not options.read_only:
        warn("each browser logs in with an account of its own; the one given here is for --read-only pages alone")
    try:
        with open_client(options if options.read_only else _without_account(options)):
            return False
    except AuthenticationError as error:
        if options.read_only and "user" in options.security:
            raise
        if options.no_token:
            raise UsageError(
                f"--no-token is for a broker without accounts, and {options.server} has them: leave it out"
            ) from error
        return True
    except SeglogError as error:
        if options.no_token:
            raise
        warn(error.message)
        warn("pages say so until it answers")
        return False


def _without_account(options: Options) -> Options:
    from dataclasses import replace

    security = {name: value for name, value in options.security.items() if name == "tls"}
    return replace(options, security=security)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


COMMAND: Final = Command(
    "console",
    runs=run,
    help="It is a client with the permissions of the account that a browser logs in with; beside a broker without "
    "accounts it prints an address with a token, which lets one browser in. Every change that its pages offer is a "
    "command of seglog, which they show first.",
    params=[
        Option(["--listen"], type=LISTEN_ADDRESS, default=LISTEN, help="Where browsers find it."),
        Option(
            ["--host-name"],
            multiple=True,
            metavar="NAME",
            help="A name by which browsers may call it, beside localhost and the address; repeatable.",
        ),
        Option(["--tls-certificate"], type=FILE, help="The certificate of its pages, in PEM."),
        Option(["--tls-key"], type=FILE, help="The key of that certificate, if it is in a file of its own."),
        flag(
            "--without-tls",
            "Listen beyond this machine without TLS: where only a proxy or a trusted network reaches it.",
        ),
        flag("--no-token", "Let in whoever reaches it, beside a broker without accounts."),
        flag("--read-only", "Offer no changes; with --user all browsers see what that account sees."),
        flag("--local", "Show times in this machine's zone instead of UTC."),
    ],
    example="seglog console",
)
