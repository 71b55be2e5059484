"""Commands of click as this command line has them: imported when they are typed, giving Options, one style of help."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource
from click.types import OptionHelpExtra

from seglog.cli.arguments import CONNECT_SECONDS, CONNECTION_OPTIONS, Options
from seglog.cli.exits import UsageError
from seglog.cli.option_types import SECONDS

SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "show_default": True}

FILE: Final = click.Path(dir_okay=False)

TIMES: Final = (
    "A TIME is relative to now (-1h, -2d12h, +30m; units ms, s, m, h, d, w), a word (now, today, yesterday, tomorrow), "
    "ISO 8601 (2024-07-01, 2024-07-01T10:00Z), or milliseconds since 1970 (@1719792000000). Without a zone it is UTC, "
    "with --local this machine's."
)
"""How to write a time, for the help of commands that take one."""
PLACES: Final = f"An OFFSET is a whole number (1200). {TIMES}"


class Choice(NamedTuple):
    """Parameters, by name, of which one at most may be given, or exactly one where it is ``required``."""

    names: tuple[str, ...]
    required: bool = False


class Option(click.Option):
    """An option; where ``show_default`` is text, that is shown in place of the default, as it is."""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """The text in brackets after the help."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


def flag(name: str, summary: str) -> Option:
    """An option that is given or not, without a value."""
    return Option([name], is_flag=True, help=summary)


class Command(click.Command):
    """A command whose invocation returns its Options, to be run by the caller.

    ``runs`` does it and returns the exit code, ``sets`` are values beside those that are typed, and ``times`` and
    ``example`` are paragraphs of its help.
    """

    def __init__(
        self,
        name: str,
        *,
        runs: Callable[[Options], int],
        params: Sequence[click.Parameter] = (),
        sets: Mapping[str, Any] | None = None,
        choices: Sequence[Choice] = (),
        times: str = "",
        example: str = "",
        talks: bool = True,
        **attributes: Any,
    ) -> None:
        own = {flag for param in params for flag in param.opts}
        shared = [option for option in common_options() if talks and own.isdisjoint(option.opts)]
        super().__init__(name, params=[*params, *shared], context_settings=SETTINGS, **attributes)
        self._runs = runs
        self._sets = dict(sets or {})
        self._choices = choices
        self._times = times
        self._example = example
        self._shared = shared

    def invoke(self, ctx: click.Context) -> Options:
        """The options as typed, before or after the name of the command."""
        for choice in self._choices:
            self._check(choice, ctx)
        values, before = dict(ctx.params), ctx.find_root().params
        behind = {name: values.pop(name) for name in _SHARED if name in values}
        typed = before | {name: value for name, value in behind.items() if value is not None}
        server = ""
        security: dict[str, Any] = {}
        if self._shared:
            from seglog.settings import connection_of

            try:
                server, security = connection_of({name: typed.get(name) for name in CONNECTION_OPTIONS})
            except ValueError as error:
                raise UsageError(str(error)) from error
        return Options(
            run=self._runs,
            server=server,
            json=bool(behind.get("json") or before.get("json")),
            connect_timeout=CONNECT_SECONDS if typed.get("connect_timeout") is None else typed["connect_timeout"],
            values=values | self._sets,
            security=security,
        )

    def _check(self, choice: Choice, ctx: click.Context) -> None:
        options = {param.name: param.opts[-1] for param in self.params}
        given = [name for name in choice.names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(options[name] for name in given)} exclude each other", ctx)
        if not given and choice.required:
            raise click.UsageError(f"{' or '.join(options[name] for name in choice.names)} is required", ctx)

    # --- Help

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its own options, then those that every command has."""
        write_options("Options", [param for param in self.params if param not in self._shared], ctx, formatter)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The arguments of the command."""
        rows = [(p.make_metavar(ctx), p.help or "") for p in self.params if isinstance(p, click.Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The common options, how to write a time, an example."""
        helping = self.get_help_option(ctx)
        shared = [*self._shared, *([helping] if helping is not None else [])]
        write_options("Options of every command", shared, ctx, formatter)
        if self._times:
            with formatter.section("Times"):
                formatter.write_text(self._times)
        if self._example:
            with formatter.section("Examples" if "\n" in self._example.strip() else "Example"):
                formatter.write(textwrap.indent(self._example.strip(), "  ") + "\n")


class Group(click.Group):
    """A group that lists its commands in the order in which they were given."""

    def __init__(self, name: str, commands: Sequence[click.Command] = (), **attributes: Any) -> None:
        super().__init__(name, commands=commands, context_settings=SETTINGS, **attributes)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Their names."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its commands, each with the first paragraph of its help, then its options."""
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        write_options("Options", self.get_params(ctx), ctx, formatter)


class LazyCommand(click.Command):
    """A placeholder for ``COMMAND`` of a module that is not imported yet; ``summary`` is the beginning of its help."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._module = module

    @cached_property
    def command(self) -> click.Command:
        """The command itself."""
        command = import_module(self._module).COMMAND
        assert isinstance(command, click.Command)
        command.help = "\n\n".join(filter(None, (self.help, command.help)))
        return command


class LazyGroup(Group):
    """A group of lazy commands: each is imported when it is typed, none for a list of them."""

    commands: dict[str, click.Command]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was typed, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.command if isinstance(command, LazyCommand) else command, rest


_SHARED: Final = (*CONNECTION_OPTIONS, "json", "connect_timeout")
"""The names of the options that every command takes, whatever it has itself."""


def common_options() -> list[click.Parameter]:
    """The options that every command takes, before or after its name."""
    return [
        Option(
            ["--server"],
            metavar="HOST:PORT",
            show_default="SEGLOG_SERVER, else the profile's, else where SEGLOG_LISTEN says, else localhost:9192",
            help="The broker; with TLS seglogs://HOST:PORT.",
        ),
        Option(
            ["--profile"],
            metavar="NAME",
            show_default="SEGLOG_PROFILE, else the file's default",
            shell_complete=_complete_profiles,
            help="The broker and account of this name in ~/.config/seglog/config.toml.",
        ),
        Option(["--user"], metavar="NAME", show_default="SEGLOG_USER", help="The account."),
        Option(
            ["--password-file"],
            type=FILE,
            show_default="SEGLOG_PASSWORD_FILE, else it is asked for",
            help="File with the account's password.",
        ),
        Option(
            ["--mechanism"],
            type=click.Choice(("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"), case_sensitive=False),
            metavar="NAME",
            show_default="the best that the broker takes",
            help="SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN.",
        ),
        Option(
            ["--tls/--no-tls"],
            default=None,
            help="Connect with TLS. It is implied by --ca, --certificate and seglogs://.",
        ),
        Option(
            ["--ca"],
            type=FILE,
            show_default="SEGLOG_CA, else the system's",
            help="The authority that has signed the broker's certificate, in PEM.",
        ),
        Option(["--certificate"], type=FILE, help="The certificate to show to the broker, in PEM."),
        Option(["--key"], type=FILE, help="The key of that certificate, if it is in a file of its own."),
        flag("--json", "Print JSON, for programs."),
        Option(
            ["--connect-timeout"], type=SECONDS, show_default=f"{CONNECT_SECONDS:g}", help="How long to try to connect."
        ),
    ]


def _complete_profiles(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of profiles that begin with ``incomplete``; none if there is no such file, or it is wrong."""
    from seglog.settings import names_of_profiles

    try:
        names = names_of_profiles()
    except Exception:  # noqa: BLE001 - whatever it is, it must not be written into somebody's prompt
        return []
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def write_options(
    title: str, params: Sequence[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """A section with those of the parameters that are options, if any are."""
    options = [param for param in params if isinstance(param, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
