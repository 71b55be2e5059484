"""The pages of help, all of them: what they have, how wide they are, and that their examples can be typed."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from seglog.cli.commands import Command, LazyCommand
from seglog.cli.dispatch import ROOT, parse

WIDTH = 80


def _walk(context: click.Context) -> Iterator[click.Context]:
    """A context of every command below this one, itself included."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            _, command, _ = context.command.resolve_command(context, [name])
            assert command is not None
            yield from _walk(click.Context(command, context, name, **command.context_settings))


PAGES = {
    context.command_path: context for context in _walk(click.Context(ROOT, None, "seglog", **ROOT.context_settings))
}


@pytest.fixture(params=list(PAGES.values()), ids=list(PAGES))
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[click.Context, str]:
    """A command in its context, and its help as a terminal of 80 columns shows it."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    context: click.Context = request.param
    return context, context.command.get_help(click.Context(context.command, context.parent, context.info_name))


def test_no_line_is_wider_than_a_terminal_and_usage_comes_first(page: tuple[click.Context, str]) -> None:
    context, text = page
    assert text.startswith(f"Usage: {context.command_path} [OPTIONS]")
    assert max(map(len, text.splitlines())) <= WIDTH


def test_every_argument_and_option_has_a_sentence(page: tuple[click.Context, str]) -> None:
    context, _ = page
    for param in context.command.params:
        assert param.help is not None, param.name
        assert param.help.endswith("."), param.name
        assert param.help[0].isupper() or re.match(r"\w+[:,] ", param.help), param.name


def test_defaults_are_shown(page: tuple[click.Context, str]) -> None:
    context, text = page
    flat = " ".join(text.split())
    for param in context.command.params:
        if not isinstance(param, click.Option) or param.is_flag:
            continue
        shown = param.show_default if isinstance(param.show_default, str) else param.get_default(context)
        if isinstance(shown, str):
            assert f"[default: {shown}]" in flat, param.name


def test_how_to_write_a_time_is_explained_where_one_is_taken_and_only_there(page: tuple[click.Context, str]) -> None:
    context, text = page
    takes = "".join(param.make_metavar(context) for param in context.command.params)
    assert ("\nTimes:\n" in text) == ("TIME" in takes)
    assert ("An OFFSET is" in text) == ("OFFSET|TIME" in takes)


def test_an_example_is_a_command_line_that_can_be_parsed(page: tuple[click.Context, str]) -> None:
    context, text = page
    _, found, examples = text.partition("\nExample")
    for line in examples.splitlines()[1:]:
        command = re.search(r"seglog [^|)>\"]*", line)
        assert command is not None, line
        assert parse(shlex.split(command[0])[1:]).run is not None
    assert not found or isinstance(context.command, Command)


def test_a_list_of_commands_says_what_the_command_says_itself() -> None:
    for name, lazy in ROOT.commands.items():
        assert isinstance(lazy, LazyCommand)
        assert lazy.help == (lazy.command.help or "").partition("\n\n")[0] != "", name


def test_exit_codes_are_on_the_first_page() -> None:
    text = " ".join(ROOT.get_help(click.Context(ROOT, None, "seglog")).split())
    assert "3 broker not reachable, 4 refused by the broker, 130 interrupted" in text
