"""The group of all commands, which handles their errors."""

from __future__ import annotations

import io
import signal
from typing import Any

import click

from dstack.cli.output import discard_unprintable_output, end_at_once
from dstack.errors import DstackError, as_dstack_error
from dstack.signals import end
from dstack.visible import visible_lines

BROKEN_PIPE = 141
"""The exit code if the reader of standard output has closed it: that of SIGPIPE."""


class Commands(click.Group):
    """Prints each error as one line and a remedy, and exits with its code; ends on Ctrl-C at once."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the subcommand."""
        try:
            return super().invoke(ctx)
        except DstackError as error:
            self._explain(ctx, error)
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
            self._explain(ctx, as_dstack_error(error))
            ctx.exit(DstackError.exit_code)

    @staticmethod
    def _explain(ctx: click.Context, error: DstackError) -> None:
        if ctx.params.get("verbose"):
            import traceback

            click.echo(visible_lines(traceback.format_exc()), err=True, nl=False)
        click.secho(f"Error: {error.message}", fg="red", err=True)
        if error.remedy:
            click.echo(error.remedy, err=True)
