"""docs/troubleshooting.md has every failure message of dstack, and no other."""

from __future__ import annotations

import ast
import functools
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
    "LostPiece": 0,
    "_NoAnswer": 0,
}
"""The argument with the message of functions that record or raise a failure: name or position."""
ERRORS = ("UsageError", "ClusterError", "SnapshotFileError", "DstackError")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
VARIABLE = "…"
"""The placeholder for the variable parts of a message."""


RETURN_REASONS = ("_objection",)
"""Functions that return the reason of a failure."""


class Module:
    """A source file with failure messages."""

    def __init__(self, path: Path) -> None:
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._functions = {node.name: node for node in ast.walk(self._tree) if isinstance(node, FUNCTION)}
        self._scopes = {inner: scope for scope in self._functions.values() for inner in ast.walk(scope)}
        self._assignments = [
            (self._scopes.get(node), target.id, node.value)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]

    def sentences(self) -> Iterator[str]:
        for node in ast.walk(self._tree):
            for reason in _reasons(node):
                yield from self._messages(reason, frozenset())

    def _messages(self, expression: ast.expr, visited: frozenset[str]) -> Iterator[str]:
        """The messages of an expression, including those of names and functions of this module.

        Messages of other modules are found there.
        """
        match expression:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else VARIABLE for part in parts)
            case ast.BinOp(op=ast.Add(), left=left):
                yield from (begun + VARIABLE for begun in self._messages(left, visited))
            case ast.IfExp(body=body, orelse=other):
                yield from (messages for one in (body, other) for messages in self._messages(one, visited))
            case ast.BoolOp(values=values):
                yield from (messages for one in values for messages in self._messages(one, visited))
            case ast.Call(func=ast.Attribute(value=ast.Constant() | ast.JoinedStr() as text)):
                yield from self._messages(text, visited)
            case ast.Name(id=name) if name not in visited:
                yield from (
                    messages
                    for one in self._assigned(name, expression)
                    for messages in self._messages(one, visited | {name})
                )
            case ast.Call() if _name(expression) in self._functions and _name(expression) not in visited:
                name = _name(expression)
                yield from (
                    messages
                    for one in _returned(self._functions[name])
                    for messages in self._messages(one, visited | {name})
                )

    def _assigned(self, name: str, where: ast.expr) -> Iterator[ast.expr]:
        """The values assigned to a name in the same function, or in the module."""
        scopes = (self._scopes.get(where), None)
        return (value for scope, target, value in self._assignments if target == name and scope in scopes)


def _reasons(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of failure messages in a node."""
    match node:
        case ast.Call(args=args, keywords=keywords):
            at = 0 if _name(node) in ERRORS else REASON_AT.get(_name(node))
            yield from (args[at : at + 1] if isinstance(at, int) else ())
            yield from (keyword.value for keyword in keywords if keyword.arg == at)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in RETURN_REASONS:
            yield from _returned(node)


def _returned(function: ast.AST) -> Iterator[ast.expr]:
    returns = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return (value for value in returns if value is not None)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.cache
def messages() -> frozenset[str]:
    found = {sentence for path in (ROOT / "dstack").rglob("*.py") for sentence in Module(path).sentences()}
    return frozenset(plain for plain in map(_plain, found) if re.search("[a-z]", plain))


def _plain(sentence: str) -> str:
    return re.sub(f"{VARIABLE}( ?{VARIABLE})*", VARIABLE, sentence).strip()


def documented() -> list[str]:
    """The messages of the document, in the first column of its tables."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    return [line.split("`")[1] for line in lines if line.startswith("| `")]


def test_every_sentence_is_explained_and_every_explained_sentence_exists() -> None:
    explained = documented()
    unexplained, obsolete = sorted(messages() - set(explained)), sorted(set(explained) - messages())
    assert not unexplained
    assert not obsolete
    assert len(explained) == len(set(explained))


def test_every_sentence_has_a_meaning_and_a_remedy() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 3, row
        assert all(cells), row


if __name__ == "__main__":
    print("\n".join(sorted(messages())))
