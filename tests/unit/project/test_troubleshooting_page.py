"""docs/troubleshooting.md has every sentence with which dstack says that something failed, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
REASON_AT = {
    "Failure": "reason",
    "Problem": 1,
    "NodeFailure": 0,
    "fail": 1,
    "CallFailure": 0,
    "DumpFailed": 0,
    "NotThisWorker": 0,
}
"""Where those that record a failure, or raise what becomes one, take its sentence: by name or by position."""
ERRORS = ("UsageError", "ClusterError", "SnapshotFileError", "DstackError")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
UNTOLD = "…"
"""In the place of what differs from case to case."""


SAY_WHY = ("_objection",)
"""Functions that say why something cannot be had, wherever that goes."""


class Module:
    """One source file, of which the sentences are wanted."""

    def __init__(self, path: Path) -> None:
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._functions = {node.name: node for node in ast.walk(self._tree) if isinstance(node, FUNCTION)}
        self._scopes = {inner: scope for scope in self._functions.values() for inner in ast.walk(scope)}

    def sentences(self) -> Iterator[str]:
        for node in ast.walk(self._tree):
            for reason in _reasons(node):
                yield from self._said(reason, frozenset())

    def _said(self, told: ast.expr, seen: frozenset[str]) -> Iterator[str]:
        """What an expression says by itself, or by way of names and functions of this module.

        What it has from elsewhere is a sentence there, too.
        """
        match told:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else UNTOLD for part in parts)
            case ast.BinOp(op=ast.Add(), left=left):
                yield from (begun + UNTOLD for begun in self._said(left, seen))
            case ast.IfExp(body=body, orelse=other):
                yield from (said for one in (body, other) for said in self._said(one, seen))
            case ast.BoolOp(values=values):
                yield from (said for one in values for said in self._said(one, seen))
            case ast.Call(func=ast.Attribute(value=ast.Constant() | ast.JoinedStr() as text)):
                yield from self._said(text, seen)
            case ast.Name(id=name) if name not in seen:
                yield from (said for one in self._assigned(name, told) for said in self._said(one, seen | {name}))
            case ast.Call() if _name(told) in self._functions and _name(told) not in seen:
                name = _name(told)
                yield from (said for one in _returned(self._functions[name]) for said in self._said(one, seen | {name}))

    def _assigned(self, name: str, where: ast.expr) -> Iterator[ast.expr]:
        """What a name is given in the same function, or in the module."""
        scope = self._scopes.get(where)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign) and self._scopes.get(node) in (scope, None):
                yield from (node.value for one in node.targets if isinstance(one, ast.Name) and one.id == name)


def _reasons(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions here that say why something failed."""
    match node:
        case ast.Call(args=args, keywords=keywords):
            at = 0 if _name(node) in ERRORS else REASON_AT.get(_name(node))
            yield from (args[at : at + 1] if isinstance(at, int) else ())
            yield from (keyword.value for keyword in keywords if keyword.arg == at)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in SAY_WHY:
            yield from _returned(node)


def _returned(function: ast.AST) -> Iterator[ast.expr]:
    returns = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return (value for value in returns if value is not None)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def said() -> set[str]:
    found = {sentence for path in (ROOT / "dstack").rglob("*.py") for sentence in Module(path).sentences()}
    return {plain for plain in map(_plain, found) if re.search("[a-z]", plain)}


def _plain(sentence: str) -> str:
    return re.sub(f"{UNTOLD}( ?{UNTOLD})*", UNTOLD, sentence).strip()


def documented() -> list[str]:
    """The sentences of the document: what stands in its tables' first column."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    return [line.split("`")[1] for line in lines if line.startswith("| `")]


def test_every_sentence_is_explained_and_every_explained_sentence_exists() -> None:
    explained = documented()
    unexplained, unsaid = sorted(said() - set(explained)), sorted(set(explained) - said())
    assert not unexplained
    assert not unsaid
    assert len(explained) == len(set(explained))


def test_every_sentence_has_a_meaning_and_a_remedy() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 3, row
        assert all(cells), row


if __name__ == "__main__":
    print("\n".join(sorted(said())))
