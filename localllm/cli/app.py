"""Finds the command, runs it, and turns failures into `Error:` lines and exit codes; it knows no command's work.

To add a command: a module here with a function `command`, and its row in COMMANDS.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from localllm.errors import LocalLLMError

COMMANDS = {
    "serve": ("localllm.cli.serve", "Start the server in this terminal"),
    "run": ("localllm.cli.run", "Run a model: answer a prompt, or chat"),
    "create": ("localllm.cli.create", "Make a model from a Modelfile"),
    "pull": ("localllm.cli.pull", "Download a model"),
    "push": ("localllm.cli.push", "Upload a model to the registry of its name"),
    "list": ("localllm.cli.list", "List the models on this machine"),
    "ps": ("localllm.cli.ps", "List the models in memory"),
    "show": ("localllm.cli.show", "Show what is known of a model"),
    "stop": ("localllm.cli.stop", "Drop a model from memory"),
    "cp": ("localllm.cli.cp", "Give a model a second name"),
    "rm": ("localllm.cli.rm", "Remove models"),
    "warmup": ("localllm.cli.warmup", "Compile what models need before they are first run"),
    "cache": ("localllm.cli.cache", "Show, clear or prune what is kept so that models start at once"),
    "registry": ("localllm.cli.registry", "Offer the models of this machine to other machines"),
    "keys": ("localllm.cli.keys", "Make, list and remove the API keys that a server accepts"),
    "help": ("localllm.cli.help", "Help about a command"),
}
ALIASES = {"ls": "list", "start": "serve"}

# Which classes these are depends on the typer version: its own copy of click, or click itself.
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class _AsWritten:
    """Takes values as they were written. Newer versions of typer would load pydantic to convert them, which takes
    longer than everything else that a command line needs; the commands read numbers from text themselves."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        return () if value is None and (param.multiple or param.nargs == -1) else value


class _ValuesAsWritten:
    """Base of commands whose parameters take values as written; booleans are flags and need no conversion."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            parameter._runtime_param = _AsWritten()
        return parameters


class PlainCommand(_ValuesAsWritten, TyperCommand):
    """A command whose help shows `usage` for its arguments, and the environment variables it reads."""

    usage: str = ""
    variables: tuple[str, ...] = ()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", self.usage] if self.usage else ["[OPTIONS]"]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from localllm import env  # a fifth of the time that `localllm --help` takes, and not needed for it

        rows = [(env.PREFIX + v.name, v.meaning) for v in env.VARIABLES if v.name in self.variables]
        if rows:
            with formatter.section("Environment Variables"):
                formatter.write_dl(rows)


class CommandGroup(_ValuesAsWritten, TyperGroup):
    """The commands of COMMANDS; a module is imported when its command is asked for, not for the list of all."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and args[0] not in ALIASES:
            near = difflib.get_close_matches(args[0], [*COMMANDS, *ALIASES], n=1)
            hint = f"did you mean `localllm {near[0]}`?" if near else "`localllm help` lists the commands"
            raise LocalLLMError(f'unknown command "{args[0]}" for "localllm"', hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def load_command(name: str) -> Any:
    """The command object of a name or alias, None for an unknown one."""
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        return None
    module = importlib.import_module(COMMANDS[name][0])
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    kind: type[PlainCommand] = getattr(module, "COMMAND_CLASS", PlainCommand)
    single.command(name=name, cls=kind, context_settings=_HELP_OPTIONS)(module.command)
    command: Any = typer.main.get_command(single)
    command.usage = getattr(module, "USAGE", "")
    command.variables = getattr(module, "VARIABLES", ("HOST",))
    return command


def _version_option(wanted: bool) -> None:
    if wanted:
        importlib.import_module("localllm.cli.version").print_versions()
        raise typer.Exit


def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-v", help="Show the version.", callback=_version_option, is_eager=True)
    ] = False,
) -> None:
    """Run language models on the computer in front of you."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def _root_command() -> Any:
    application = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP_OPTIONS,
    )
    application.callback(invoke_without_command=True)(root)
    return typer.main.get_command(application)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line (default: the process's own arguments) and exits the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns the exit code."""
    try:
        code = _root_command()(list(arguments), prog_name="localllm", standalone_mode=False)
        sys.stdout.flush()
    except LocalLLMError as error:
        return _fail(str(error), error.hint)
    except _ClickError as error:
        return _fail(_lower_first(error.format_message()), f"`{error.ctx.command_path} --help` shows the usage")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader went away; the interpreter must not try to flush to it again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _fail(message: str, hint: str | None) -> int:
    print(f"Error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return 1
