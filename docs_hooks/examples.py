"""One page per folder of examples, with the docstring and the report of each example."""

from __future__ import annotations

import ast

from tests.examples.recorded import NAMES, report_of
from tests.paths import EXAMPLES

FOLDERS = {
    "": ("top_level", "Examples at the top level"),
    "case_studies": ("case_studies", "Programs of the case studies"),
    "case_studies/libraries": ("case_studies_libraries", "Programs of the case studies with other libraries"),
    "hangs": ("hangs", "Hangs"),
    "hangs/libraries": ("hangs_libraries", "Hangs in Ray's libraries"),
    "look_alikes": ("look_alikes", "Look-alikes"),
    "look_alikes/libraries": ("look_alikes_libraries", "Look-alikes in Ray's libraries"),
}
"""The page and the title of each folder."""

_INTRODUCTION = """\
`dstack demo NAME` runs an example on a local cluster. The reports here are those that dstack prints for recorded
snapshots of the examples. *Look-alikes* are healthy programs that resemble a hang. The lines under each description
are what the tests expect of the report."""


def pages() -> dict[str, str]:
    """The pages by path."""
    found = {f"examples/{page}.md": _folder(folder, title) for folder, (page, title) in FOLDERS.items()}
    return {"examples/index.md": _index(), **found}


def link(name: str) -> str:
    """The page and anchor of an example, named with or without its folder."""
    full = next(one for one in NAMES if one == name or _anchor(one) == name)
    return f"examples/{FOLDERS[full.rpartition('/')[0]][0]}.md#{_anchor(full)}"


def report_block(name: str, lines: int | None = None) -> str:
    """The report on an example, or its first lines, as a block of code."""
    report = report_of(name).rstrip().splitlines()
    shown = report if lines is None or lines >= len(report) else [*report[:lines], "..."]
    return "\n".join(["```text", *shown, "```"])


def _index() -> str:
    parts = ["# Reports of all examples", _INTRODUCTION]
    for folder, (page, title) in FOLDERS.items():
        rows = [f"- [{name}]({page}.md#{_anchor(name)}): {_docstring(name)[0]}" for name in _names(folder)]
        parts += [f"## {title}", "\n".join(rows)]
    return "\n\n".join(parts)


def _folder(folder: str, title: str) -> str:
    return "\n\n".join([f"# {title}", *(_example(name) for name in _names(folder))])


def _example(name: str) -> str:
    first, description, expected = _docstring(name)
    heading = f"## {name} {{ #{_anchor(name)} }}"
    parts = (
        heading,
        first,
        description,
        f"```text\n{expected}\n```",
        report_block(name),
    )
    return "\n\n".join(part for part in parts if part)


def _docstring(name: str) -> tuple[str, str, str]:
    """The first sentence, the description, and what the tests expect."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    before, _, expected = text.rpartition("\n\n")
    first, _, description = before.partition("\n\n")
    return " ".join(first.split()), description, expected


def _names(folder: str) -> list[str]:
    return [name for name in NAMES if name.rpartition("/")[0] == folder]


def _anchor(name: str) -> str:
    return name.rpartition("/")[2]
