"""Finds calls of ``ray.cancel``, ``ray.kill`` and the like in source, which a function may make next.

A function may still make the calls from its current line on, and those in a loop around it. A call of another function
of the same file counts if that one makes such a call, directly or through others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dstack.observed import StopCall

STOPS = ("cancel", "kill", "__ray_terminate__")
"""Functions of Ray, and a method of actors, that stop a task or an actor (Ray 2.46 to 2.60)."""
MAX_FILES, MAX_NAME = 2_000, 60
MAX_DEPTH = 4
"""Functions of one file that call each other."""
LOOPS, SCOPES = (ast.While, ast.For, ast.AsyncFor), (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class _Function:
    """A function, or the top level of a file, with its own calls and the lines of its own loops."""

    name: str
    first_line: int
    last_line: int
    calls: list[StopCall] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)

    def calls_from(self, line: int) -> Iterator[StopCall]:
        """The calls that it may still make at this line."""
        begins = (first for first, last in self.loops if first <= line <= last)
        return (call for call in self.calls if call.line >= min(begins, default=line))


class StopCalls:
    """The calls that stop something, in the source files of one node; each is parsed once."""

    def __init__(self) -> None:
        self._files: dict[str, list[_Function]] = {}

    def next_at(self, path: str, line: int, lines: Callable[[], Sequence[str]]) -> StopCall | None:
        """The next such call that a function may make while it is at this line; ``lines`` reads the file."""
        if path not in self._files:
            if len(self._files) >= MAX_FILES:
                self._files.clear()
            self._files[path] = _functions("\n".join(lines()))
        functions = self._files[path]
        around = [one for one in functions if one.first_line <= line <= one.last_line]
        own = min(around, key=lambda one: one.last_line - one.first_line, default=None)
        calls = own.calls_from(line) if own else ()
        return next((call for call in calls if _stops(call, functions, MAX_DEPTH)), None)


def _stops(call: StopCall, functions: Sequence[_Function], depth: int) -> bool:
    """Whether a call stops something, by its name or by what the function of that name in the file calls."""
    of, _, name = call.name.rpartition(".")
    if (of == "ray" and name in STOPS) or STOPS[-1] in call.name.split("."):
        return True
    called = [one for one in functions if one.name == name] if depth else []
    return any(_stops(inner, functions, depth - 1) for function in called for inner in function.calls)


def _functions(source: str) -> list[_Function]:
    """The functions of a file, with its top level first; none for a file without such calls."""
    if not any(name in source for name in STOPS):
        return []
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [_Function("", 0, source.count("\n") + 1)]
    _collect(module, found[0], found, dict(_names_of_ray(module)))
    return found


def _names_of_ray(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names by which a file calls ``ray`` and what it imports from it, with Ray's own names."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((one.asname, one.name) for one in node.names if one.asname and one.name == "ray")
        elif isinstance(node, ast.ImportFrom) and node.module == "ray":
            yield from ((one.asname or one.name, f"ray.{one.name}") for one in node.names)


def _collect(node: ast.AST, own: _Function, found: list[_Function], names: Mapping[str, str]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = own
        if isinstance(child, SCOPES):
            inner = _Function(child.name, child.lineno, child.end_lineno or child.lineno)
            found.append(inner)
        elif isinstance(child, LOOPS):
            own.loops.append((child.lineno, child.end_lineno or child.lineno))
        elif isinstance(child, ast.Call) and (name := _dotted(child.func)):
            first, dot, rest = name.partition(".")
            own.calls.append(StopCall(name=f"{names.get(first, first)}{dot}{rest}"[:MAX_NAME], line=child.lineno))
        _collect(child, inner, found, names)


def _dotted(called: ast.expr) -> str:
    """``ray.cancel``; of a method of a value, only its own name."""
    if isinstance(called, ast.Attribute):
        of = _dotted(called.value)
        return f"{of}.{called.attr}" if of else called.attr
    return called.id if isinstance(called, ast.Name) else ""
