"""The command ``demo``, and the example programs that it runs, wherever this installation keeps them."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from dstack.cli.output import print_snapshot, print_text, show_progress
from dstack.errors import UsageError, require_linux

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_examples", _PACKAGE.parent / "examples")
"""In an installed package, and in a source checkout."""


@click.command()
@click.argument("name", default="two_actors")
@click.option("--list", "list_them", is_flag=True, help="List the examples.")
def demo(name: str, list_them: bool) -> None:
    """Run an example that hangs, and explain it. Starts a small local cluster."""
    if list_them:
        known = summaries()
        width = max(map(len, known))
        print_text("".join(f"{example:{width}}  {summary}\n" for example, summary in known.items()))
        return
    path = find(name)
    require_linux()
    from dstack.collecting import capture
    from dstack.probes.connection.own_cluster import running_example

    click.echo(f"Running {path}", err=True)
    with show_progress() as progress:
        progress("starting Ray")
        with running_example(path) as address:
            taken = capture.settled_snapshot(address, progress)
    print_snapshot(taken)


def find(name: str) -> Path:
    """The file of an example, named with or without its folder. Raises :class:`UsageError` where there is none."""
    known = files()
    path = known.get(name) or {path.stem: path for path in known.values()}.get(name)
    if path is None:
        raise UsageError(f"There is no example {name!r}.", f"Choose one of: {', '.join(known)}.")
    return path


def summaries() -> dict[str, str]:
    """The first line of each example's docstring, by name; those of a folder stand together."""
    docs = {name: ast.get_docstring(ast.parse(path.read_text())) or "" for name, path in files().items()}
    return {name: doc.partition("\n")[0] for name, doc in docs.items()}


def files() -> dict[str, Path]:
    """By name, which for an example in a folder is ``folder/name``; first those in none."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        raise UsageError("This installation has no examples.", "Reinstall ray-dstack, or run it from a checkout.")
    paths = [path for path in folder.rglob("*.py") if not path.stem.startswith(("_", "test_"))]
    paths.sort(key=lambda path: (path.parent != folder, path.parent, path))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
