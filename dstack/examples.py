"""The example programs that ``dstack demo`` runs, wherever this installation keeps them."""

from __future__ import annotations

import ast
from pathlib import Path

from dstack.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "_examples", _PACKAGE.parent / "examples")
"""In an installed package, and in a source checkout."""


def find(name: str) -> Path:
    """The file of an example. Raises :class:`UsageError` for a name there is none of."""
    files = _files()
    if name not in files:
        raise UsageError(f"There is no example {name!r}.", f"There are: {', '.join(sorted(files))}.")
    return files[name]


def summaries() -> dict[str, str]:
    """The first line of each example's docstring, by name."""
    docs = {name: ast.get_docstring(ast.parse(path.read_text())) or "" for name, path in _files().items()}
    return {name: docs[name].partition("\n")[0] for name in sorted(docs)}


def _files() -> dict[str, Path]:
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        raise UsageError("This installation has no examples.", "Install ray-dstack again, or run from a checkout.")
    return {path.stem: path for path in folder.glob("*.py") if not path.stem.startswith("_")}
