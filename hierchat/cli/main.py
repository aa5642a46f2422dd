"""Define the command line: hierchat [serve] | chat | models | corpus | keys | users | ..."""

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from hierchat import connections, logs, shutdown
from hierchat.cli.options import Group
from hierchat.freed_memory import use_one_pool
from hierchat.language import ENGLISH, error_words, of_terminal, spoken

_COMMANDS = {
    "serve": ("serve", "the chat, in the browser; what a call without a command does"),
    "chat": ("terminal", "a chat in the terminal; with a MESSAGE one answer, for scripts, too"),
    "models": ("models_and_corpora", "what can answer, and what is on this machine"),
    "corpus": ("models_and_corpora", "texts that draft, beside what the model has written"),
    "keys": ("accounts", "keys with which other programs may use the model (serve --api)"),
    "import": ("transfer", "chats of ChatGPT, LM Studio, Open WebUI or another hierchat into yours"),
    "export": ("transfer", "your chats as files"),
    "backup": ("transfer", "a copy of the database, while the chat may run"),
    "restore": ("transfer", "a backup in the place of the database; alone, the backups that are there"),
    "forget": ("transfer", "delete all chats of a user for good"),
    "users": ("accounts", "accounts for the page's login"),
    "doctor": ("checks", "machine, versions, kernels and database, to paste into a report"),
    "prove": ("checks", "that the promises hold on this machine: words, connections, kills, deletion"),
    "verify": ("checks", "the same words with drafting on and off, token for token"),
}
"""Module of `hierchat.cli` that has a command, as `NAME_command`, and the command's help."""


class _Commands(Group):
    """Group of commands whose modules are imported when they are called: some take seconds."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, about = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"hierchat.cli.{module}"), f"{cmd_name}_command")
        command.help = command.help or about
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A private chat that drafts from your history. Without a command it starts the chat.",
    epilog="`hierchat COMMAND --help` shows what a command takes; `hierchat serve --help` is about the chat.",
)
@click.option("--verbose", is_flag=True, expose_value=False, help="say more in the terminal")
def hierchat() -> None:
    """Stand in front of all commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the chat, and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    at = 1 if words[:1] == ["--verbose"] else 0
    if not words[at:] or (words[at].startswith("-") and words[at] not in ("-h", "--help")):
        words.insert(at, "serve")  # where no command is named
    use_one_pool()
    connections.record()
    logs.set_up("--verbose" in words)
    try:
        # Whoever asks a service has a language of their own.
        language = ENGLISH if "serve" in words[:2] else of_terminal()
        with spoken(language), shutdown.in_order(), hierchat.make_context("hierchat", words) as context:
            return hierchat.invoke(context) or 0
    except KeyboardInterrupt:
        return 130
    except click.exceptions.Exit as done:  # --help
        return done.exit_code
    except click.UsageError as error:
        if error.ctx:
            print(error.ctx.get_usage(), file=sys.stderr)
        place = error.ctx.command_path if error.ctx else "hierchat"
        print(f"{place}: error: {error.format_message()}", file=sys.stderr)
        return 2
    except shutdown.Ended:
        if "serve" in words[:2]:
            return 0  # until it is told to end: that was all it had to do
        raise
    except Exception as error:
        with spoken(of_terminal()):
            print(f"hierchat: {error_words(logs.error_message(error, here=True))}", file=sys.stderr)
        return 1
