"""What a function may do next, by its source: what it stops, as a task, an actor or its process, and if it may fail.

A function may still make the calls from its current line on, and those in a loop around it. A call of another function
of the same file does what that one calls, directly or through others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dstack.observed.processes import StopCall
from dstack.probes.node.stacks import function_names as known

MAX_NAME = 60
MAX_DEPTH = 4
"""Functions of one file that call each other."""
LOOPS, SCOPES, FAILS = (
    (ast.While, ast.For, ast.AsyncFor),
    (ast.FunctionDef, ast.AsyncFunctionDef),
    (ast.Raise, ast.Assert),
)


@dataclass(frozen=True, slots=True)
class Next:
    """The first call that stops something, and whether the function may end with an exception, or stop something."""

    stops: StopCall | None = None
    may_fail: bool = True
    may_stop: bool = True


@dataclass
class Function:
    """A function, or the top level of a file, with its own calls and the lines of its loops and failures.

    ``behind`` are calls in a statement that is behind another one of the same line.
    """

    name: str
    first_line: int
    last_line: int
    calls: list[StopCall] = field(default_factory=list)
    behind: list[StopCall] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)
    fails: list[int] = field(default_factory=list)

    def first_line_from(self, line: int) -> int:
        """The first line that it may still execute at this one."""
        return min((first for first, last in self.loops if first <= line <= last), default=line)


def next_at(functions: Sequence[Function], line: int) -> Next:
    """What a function may do next while it is at this line; ``functions`` are those of its file."""
    around = [one for one in functions if one.first_line <= line <= one.last_line]
    own = min(around, key=lambda one: one.last_line - one.first_line, default=None)
    if own is None:
        return Next()
    first = own.first_line_from(line)
    calls = [call for call in own.calls if call.line >= first]
    fails = any(at >= first for at in own.fails) or not all(_is_harmless(one, functions, MAX_DEPTH) for one in calls)
    stops = next(filter(None, (_stop(call, functions, MAX_DEPTH) for call in calls)), None)
    later = (call for call in calls if (call.line != line or call in own.behind) and call.name not in known.WAITS)
    may_stop = stops is not None or not all(_is_harmless(one, functions, MAX_DEPTH) for one in later)
    return Next(stops, fails, may_stop)


def _stop(call: StopCall, functions: Sequence[Function], depth: int) -> StopCall | None:
    """The call if it stops something, by its name or by what the function of that name in the file calls."""
    of, _, name = call.name.rpartition(".")
    if known.ENDS_PROCESS.fullmatch(call.name):
        return replace(call, ends_process=True)
    if (of == "ray" and name in known.STOPS) or known.STOPS[-1] in call.name.split("."):
        return call
    inner = (_stop(one, functions, depth - 1) for called in _called(call, functions, depth) for one in called.calls)
    found = next(filter(None, inner), None)
    return replace(call, ends_process=found.ends_process) if found else None


def _is_harmless(call: StopCall, functions: Sequence[Function], depth: int) -> bool:
    """Whether a call sleeps, logs or computes, or calls a function of the file that does no more."""
    last = call.name.rpartition(".")[2]
    patterns = (known.SLEEPS, known.LOGS, known.PURE, known.CLOCKS)
    if any(pattern.fullmatch(call.name) for pattern in patterns) or known.CHANGES.fullmatch(last):
        return True
    called = _called(call, functions, depth)
    return bool(called) and not any(
        one.fails or not all(_is_harmless(inner, functions, depth - 1) for inner in one.calls) for one in called
    )


def _called(call: StopCall, functions: Sequence[Function], depth: int) -> list[Function]:
    """The functions of the file that a call may be of, by their name."""
    name = call.name.rpartition(".")[2]
    return [one for one in functions if name and one.name == name] if depth else []


def functions_in(source: str) -> list[Function]:
    """The functions of a file, with its top level first; none for a file that cannot be read or parsed."""
    if not source:
        return []
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [Function("", 0, source.count("\n") + 1)]
    _Collector(found, dict(_imported_names(module))).collect(module, found[0])
    return found


def _imported_names(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names by which a file calls the modules that can stop something, and what it imports from them."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((one.asname, one.name) for one in node.names if one.asname and one.name in known.MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in known.MODULES:
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


class _Collector:
    """Collects the functions of a file with what they contain; ``names`` are the imported ones."""

    def __init__(self, found: list[Function], names: Mapping[str, str]) -> None:
        self._found = found
        self._names = names
        self._first_of_line: dict[int, ast.AST] = {}

    def collect(self, node: ast.AST, own: Function, statement: ast.AST | None = None) -> None:
        """Collect what is below a node of a function, in a simple statement or outside of one."""
        for child in ast.iter_child_nodes(node):
            inner, inside = own, statement
            if isinstance(child, SCOPES):
                inner = Function(child.name, child.lineno, child.end_lineno or child.lineno)
                self._found.append(inner)
            elif isinstance(child, LOOPS):
                own.loops.append((child.lineno, child.end_lineno or child.lineno))
            elif isinstance(child, ast.stmt) and not hasattr(child, "body"):
                inside = child
                self._first_of_line.setdefault(child.lineno, child)
            if isinstance(child, FAILS):
                own.fails.append(child.lineno)
            elif isinstance(child, ast.Call):
                first, dot, rest = _dotted(child.func).partition(".")
                call = StopCall(name=f"{self._names.get(first, first)}{dot}{rest}"[:MAX_NAME], line=child.lineno)
                own.calls.append(call)
                if self._first_of_line.get(child.lineno, inside) is not inside:
                    own.behind.append(call)
            self.collect(child, inner, inside)


def _dotted(called: ast.expr) -> str:
    """``ray.cancel``; of a method of a value, only its own name; empty for what has none."""
    if isinstance(called, ast.Attribute):
        of = _dotted(called.value)
        return f"{of}.{called.attr}" if of else called.attr
    return called.id if isinstance(called, ast.Name) else ""
