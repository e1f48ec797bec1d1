"""Each failure message of dstack says what to do, or docs/troubleshooting.md does."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.paths import ROOT

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
ERRORS = ("UsageError", "ClusterError", "SnapshotFileError", "DstackError")
REASON_AT: dict[str, int | None] = {
    **dict.fromkeys(ERRORS, 0),
    "Failure": None,
    "Problem": 1,
    "NodeFailure": 0,
    "CallFailure": 0,
    "DumpFailed": 0,
    "NotThisWorker": 0,
    "LostPiece": 0,
    "_NoAnswer": 0,
}
"""The position of the message in functions that record or raise a failure; None if it is the argument ``reason``."""
REMEDY_AT = {**dict.fromkeys(ERRORS, 1), "Problem": 3, "NodeFailure": 2, "DumpFailed": 1}
"""The position of the remedy, which may also be the argument ``remedy``."""
NOTHING_TO_DO = {"Cancelled.", "The page was cancelled."}
"""What the caller of dstack asked for."""
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
VARIABLE = "…"
"""The placeholder for the variable parts of a message."""


RETURN_REASONS = ("_objection",)
"""Functions that return the reason of a failure."""
NAMED = re.compile(rf"\b(?:{'|'.join([*REASON_AT, *RETURN_REASONS])})\(")
"""A file without such a call has no message."""


class Message(NamedTuple):
    """A failure message: whether it ends the command, and whether dstack itself says what to do."""

    text: str
    is_error: bool
    has_remedy: bool


class Module:
    """A source file with failure messages."""

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._functions = {node.name: node for node in ast.walk(self._tree) if isinstance(node, FUNCTION)}
        self._scopes = {inner: scope for scope in self._functions.values() for inner in ast.walk(scope)}
        self._assignments = [
            (self._scopes.get(node), target.id, node.value)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]

    def messages(self) -> Iterator[Message]:
        for node in ast.walk(self._tree):
            for reason in _reasons(node):
                for text in self._messages(reason, frozenset()):
                    yield Message(_plain(text), _is_error(node), _has_remedy(node))

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
        case ast.Call() if _name(node) in REASON_AT:
            yield from _argument(node, REASON_AT[_name(node)], "reason")
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in RETURN_REASONS:
            yield from _returned(node)


def _has_remedy(node: ast.AST) -> bool:
    """Whether a remedy is given; a usage error of pytest has none of its own, so its message has it."""
    if not isinstance(node, ast.Call):
        return False
    remedies = list(_argument(node, REMEDY_AT.get(_name(node)), "remedy"))
    is_pytest = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "pytest"
    return is_pytest or any(not (isinstance(one, ast.Constant) and one.value is None) for one in remedies)


def _argument(call: ast.Call, position: int | None, name: str) -> list[ast.expr]:
    positional = [] if position is None else call.args[position : position + 1]
    return [*positional, *(keyword.value for keyword in call.keywords if keyword.arg == name)]


def _is_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node) in ERRORS


def _returned(function: ast.AST) -> Iterator[ast.expr]:
    returns = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return (value for value in returns if value is not None)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.cache
def messages() -> frozenset[Message]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "dstack").rglob("*.py"))
    found = {message for text in texts if NAMED.search(text) for message in Module(text).messages()}
    return frozenset(message for message in found if re.search("[a-z]", message.text))


def _plain(sentence: str) -> str:
    return re.sub(f"{VARIABLE}( ?{VARIABLE})*", VARIABLE, sentence).strip()


def documented() -> list[str]:
    """The messages of the document, in the first column of its tables."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    return [line.split("`")[1] for line in lines if line.startswith("| `")]


def test_every_error_has_a_remedy() -> None:
    errors = [message for message in messages() if message.is_error]

    assert len(errors) > 100
    assert {message.text for message in errors if not message.has_remedy} == NOTHING_TO_DO


def test_every_failure_without_a_remedy_is_on_the_page() -> None:
    without = {message.text for message in messages() if not message.is_error and not message.has_remedy}

    assert without <= set(documented())


def test_every_message_of_the_page_exists_once() -> None:
    assert set(documented()) <= {message.text for message in messages()}
    assert len(documented()) == len(set(documented()))


def test_every_row_has_a_meaning_and_a_remedy() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 3, row
        assert all(cells), row


def test_the_page_is_short() -> None:
    assert len(DOCUMENT.read_text(encoding="utf-8").split()) < 3000
