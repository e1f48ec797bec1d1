"""The ``dstack`` command. Each subcommand imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any

import click
from click.shell_completion import get_completion_class

from dstack.cli.cure import cure
from dstack.cli.examples import demo
from dstack.cli.explore import explore
from dstack.cli.history import graph, predict, timeline
from dstack.cli.memory import memory
from dstack.cli.monitoring import mcp, top, tui, watch
from dstack.cli.output import discard_unprintable_output, end_at_once, print_text
from dstack.cli.profile import profile
from dstack.cli.record import record
from dstack.cli.report import report
from dstack.cli.snapshots import check, doctor, show, snapshot
from dstack.cli.stacks import logs, stacks
from dstack.errors import DstackError, as_dstack_error
from dstack.processes.signals import end
from dstack.version import __version__
from dstack.words import visible_lines

BROKEN_PIPE = 141
"""The exit code if the reader of standard output has closed it: that of SIGPIPE."""


SECTIONS = {
    "Explain": ("check", "snapshot", "show", "cure", "tui", "report"),
    "Look closer": ("top", "stacks", "logs", "memory", "graph"),
    "Over time": ("timeline", "profile", "record", "watch"),
    "Before it hangs": ("predict", "explore"),
    "Tools": ("doctor", "demo", "mcp", "completion"),
}
"""The commands by their purpose, as help lists them."""


class Commands(click.Group):
    """Prints each error as one line and a remedy, and exits with its code; ends on Ctrl-C at once."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command, or prints its help, which is before :meth:`invoke`."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            self._explain(as_dstack_error(error))
            discard_unprintable_output()
            sys.exit(DstackError.exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands by their purpose, each with its first sentence."""
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                rows = [(name, self.commands[name].get_short_help_str(200)) for name in names if name in self.commands]
                formatter.write_dl([(f"{name:{width}}", text) for name, text in rows])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the subcommand."""
        is_verbose = bool(ctx.params.get("verbose"))
        try:
            return super().invoke(ctx)
        except DstackError as error:
            self._explain(error, is_verbose=is_verbose)
            discard_unprintable_output()
            ctx.exit(error.exit_code)
        except KeyboardInterrupt as error:
            end(getattr(error, "number", signal.SIGINT))
        except BrokenPipeError:
            end_at_once(BROKEN_PIPE)
        except click.ClickException as error:
            text = io.StringIO()
            error.show(text)
            click.echo(visible_lines(text.getvalue()), err=True, nl=False)
            ctx.exit(error.exit_code)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            self._explain(as_dstack_error(error), is_verbose=is_verbose)
            discard_unprintable_output()
            ctx.exit(DstackError.exit_code)

    @staticmethod
    def _explain(error: DstackError, *, is_verbose: bool = False) -> None:
        if is_verbose:
            import traceback

            click.echo(visible_lines(traceback.format_exc()), err=True, nl=False)
        click.secho(f"Error: {error.message}", fg="red", err=True)
        if error.remedy:
            click.echo(error.remedy, err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Show the tracebacks of errors.")
@click.version_option(__version__, prog_name="dstack")
def main(verbose: bool) -> None:
    """Explain a hung Ray application from outside: what waits for what, what is deadlocked, and how to fix it.

    Exit codes: 0 success, 2 usage error, 3 cluster or file unreadable, 128 + N ended by signal N (130 for Ctrl-C).
    Commands that look for deadlocks add 1 and 4, as their help says.
    """
    if not verbose:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise it writes to stderr about each peer that has ended


@click.command(
    epilog='bash, zsh: add  eval "$(dstack completion SHELL)"  to ~/.bashrc or ~/.zshrc. '
    "fish: dstack completion fish > ~/.config/fish/completions/dstack.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    It completes dstack's commands, options and files.
    """
    of_shell = get_completion_class(shell)
    assert of_shell is not None
    print_text(of_shell(ctx.find_root().command, {}, "dstack", "_DSTACK_COMPLETE").source() + "\n")


for command in (
    check,
    completion,
    cure,
    demo,
    doctor,
    explore,
    graph,
    logs,
    mcp,
    memory,
    predict,
    record,
    profile,
    report,
    show,
    snapshot,
    stacks,
    timeline,
    top,
    tui,
    watch,
):
    main.add_command(command)
