"""The command ``demo``, and the example programs that it runs, wherever this installation keeps them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import click

from dstack.cli.output import print_snapshot, print_text, show_progress
from dstack.errors import UsageError, require_linux
from dstack.words import base_name, close_to, grouped

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_examples", _PACKAGE.parent / "examples")
"""In an installed package, and in a source checkout."""
LIST = "List them with: dstack demo --list [WORD]"
KINDS = {
    "": "First examples",
    "case_studies": "Case studies: programs as they are in practice",
    "hangs": "Programs that hang",
    "look_alikes": "Programs that only seem to hang",
}
"""The titles of the folders."""


@click.command()
@click.argument("name", default="")
@click.option("--list", "list_them", is_flag=True, help="List the examples; with NAME those that have this word.")
def demo(name: str, list_them: bool) -> None:
    """Run an example that hangs, and explain it.

    NAME is two_actors by default. Starts a small cluster on this machine.
    """
    if list_them:
        print_text(_listed(name))
        return
    path = find(name or "two_actors")
    require_linux()
    from dstack.collecting import capture
    from dstack.probes.connection.own_cluster import running_example

    click.echo(f"Running {path}", err=True)
    with show_progress() as progress:
        progress("starting Ray")
        with running_example(path) as address:
            taken = capture.settled_snapshot(address, progress)
    print_snapshot(taken)


def _listed(word: str) -> str:
    """The examples whose line has the word, folder by folder. Raises :class:`UsageError` if there are none."""
    known = {
        name: summary for name, summary in summaries().items() if word.casefold() in f"{name} {summary}".casefold()
    }
    if not known:
        raise UsageError(f"No example has the word {word!r}.", LIST)
    folders = grouped((name.rpartition("/")[0], (base_name(name), summary)) for name, summary in known.items())
    return "\n".join(_section(folder, examples) for folder, examples in folders.items())


def _section(folder: str, examples: list[tuple[str, str]]) -> str:
    """A title with the number of examples, and a line for each, on a terminal no longer than it is wide."""
    from shutil import get_terminal_size

    columns = get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    width = max(len(name) for name, _ in examples)
    lines = [f"{_title(folder)} ({len(examples)})", *(f"  {name:{width}}  {summary}" for name, summary in examples)]
    return "".join(f"{line if len(line) <= columns else f'{line[: columns - 1]}…'}\n" for line in lines)


def _title(folder: str) -> str:
    kind, _, rest = folder.partition("/")
    return f"{KINDS.get(kind, kind)}{', with libraries of Ray' if rest else ''}"


def find(name: str) -> Path:
    """The file of an example, named with or without its folder. Raises :class:`UsageError` where there is none."""
    known = files()
    path = known.get(name) or {path.stem: path for path in known.values()}.get(name)
    if path is None:
        raise UsageError(f"There is no example {name!r}.", f"{close_to(name, known)}{LIST}")
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
