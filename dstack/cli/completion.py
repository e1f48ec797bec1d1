"""The command ``completion``: the script that completes commands, options and files in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    epilog='bash, zsh: add  eval "$(dstack completion SHELL)"  to ~/.bashrc or ~/.zshrc. '
    "fish: dstack completion fish > ~/.config/fish/completions/dstack.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes dstack's commands, options and files in a shell."""
    of_shell = get_completion_class(shell)
    assert of_shell is not None
    click.echo(of_shell(ctx.find_root().command, {}, "dstack", "_DSTACK_COMPLETE").source())
