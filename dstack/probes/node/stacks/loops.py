"""Classifies loops by their source: whether a loop ends by itself, and whether it does more than poll.

A thread that is repeatedly at the same poll may only poll. Not so if the loop counts attempts or compares the time, and
then proceeds without the polled value; nor if it makes other calls between two polls, which may unblock others. Only
the lines of the loop are parsed; their indentation delimits them.

A loop ends by itself if it counts, compares the time, or its condition calls something other than the poll. What it
calls shows readers of a report what it polls.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from dstack.observed import Loop, LoopBody

FoundLoop = tuple[Loop, LoopBody | None]
"""The kind of a loop, and its lines and calls if it could be parsed."""

MAX_LINES = 400
"""The longest loop that is parsed, and how far above a line its beginning is searched for."""
MAX_KNOWN = 20_000
HEADER = re.compile(r"(async\s+)?(for|while)\b")
SCOPE = re.compile(r"(async\s+)?(def|class)\b")
ENDLESS = ("count", "cycle", "repeat")
"""Iterators of ``itertools`` that do not end."""
CLOCK = re.compile(
    r"(?i).*(deadline|timeout|time_?left|elapsed|expir|attempt|retry|retries).*|(.*_)?tries"
    r"|time(_ns)?|monotonic(_ns)?|perf_counter(_ns)?|now|utcnow"
)
"""Names in the condition of a loop that ends by itself."""
HARMLESS = re.compile(
    r"print|sleep|time(_ns)?|monotonic(_ns)?|perf_counter(_ns)?|len|min|max|sum|int|float|str|bool|list|set|dict|tuple"
    r"|sorted|range|zip|enumerate|isinstance|format|join|append|extend|debug|info|warning|error|exception|log"
    r"|is_set|get|wait|acquire|release|qsize|empty|is_alive|locked|remote|flush|done|running|cancelled|has_next|has_free"
)
"""Names of calls that cannot unblock others, or are polls themselves."""
OUTSIDE = ("requests", "httpx", "session", "client", "http")
"""Modules and objects whose ``get`` asks a server."""
OTHER_TIMES = (ast.While, ast.For, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements whose bodies may not be executed."""
QUIET = re.compile(r"sleep|debug|info|warning|error|exception|log|flush")
"""Names of calls that say nothing about what a loop polls."""
OWN_FUNCTIONS = frozenset(dir(builtins)) - {"open", "input"}
GET_ACTOR = "get_actor"
MAX_CALLS, MAX_NAME = 6, 60
LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)


class Loops:
    """The loops of one node's source files, each read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], FoundLoop | None] = {}

    def at(self, path: str, line: int, lines: Callable[[], Sequence[str]]) -> FoundLoop | None:
        """As :func:`loop_at`; ``lines`` reads the file where that is necessary."""
        key = (path, line)
        if key not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = loop_at(lines(), line)
        return self._known[key]


def loop_at(lines: Sequence[str], line: int) -> FoundLoop | None:
    """The innermost loop around a line, counted from 1, in its function; None where it is in none.

    A loop that cannot be parsed counts as bounded.
    """
    begin = _header(lines, line - 1)
    if begin is None:
        return None
    block = _block(lines, begin)
    try:
        loop = ast.parse(textwrap.dedent("\n".join(block))).body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError):
        return "bounded", None
    if not isinstance(loop, (ast.While, ast.For, ast.AsyncFor)):
        return "bounded", None
    return _kind(loop, line - begin), _body(loop, begin, lines)


def _kind(loop: ast.While | ast.For | ast.AsyncFor, line: int) -> Loop:
    if _is_bounded(loop):
        return "bounded"
    return "busy" if any(map(_is_work, _without_result(loop, line))) else "plain"


def _body(loop: ast.While | ast.For | ast.AsyncFor, begin: int, lines: Sequence[str]) -> LoopBody:
    """The lines of a loop that begins below this number of lines, and its calls in the order of its lines."""
    found = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    calls = sorted(found, key=lambda node: (node.lineno, node.col_offset))
    names = [name for node in calls if (name := _dotted(node.func)) and name not in OWN_FUNCTIONS]
    telling = [name for name in names if not QUIET.fullmatch(name.rpartition(".")[2]) and len(name) <= MAX_NAME]
    actors = (_text(node.args[0], lines) for node in calls if node.args and _name(node.func) == GET_ACTOR)
    return LoopBody(
        first_line=begin + 1,
        last_line=begin + (loop.end_lineno or loop.lineno),
        calls=tuple(dict.fromkeys(telling))[:MAX_CALLS],
        sleeps=any(name.rpartition(".")[2] == "sleep" for name in names),
        actors=tuple(dict.fromkeys(name for name in actors if name and len(name) <= MAX_NAME))[:MAX_CALLS],
    )


def _dotted(called: ast.expr) -> str:
    """``ray.nodes``; empty for a function that is not simply named."""
    if isinstance(called, ast.Attribute):
        of = _dotted(called.value)
        return f"{of}.{called.attr}" if of else ""
    return called.id if isinstance(called, ast.Name) else ""


def _text(argument: ast.expr, lines: Sequence[str]) -> str | None:
    """The text that an argument is; of a constant of the module, by its name in capitals, its only value."""
    if isinstance(argument, ast.Constant):
        return argument.value if isinstance(argument.value, str) else None
    if not isinstance(argument, ast.Name) or not argument.id.isupper():
        return None
    assigned = re.compile(rf"\s*{re.escape(argument.id)}\s*(?::[^=]+)?=\s*(?:[\"']([^\"'\\]*)[\"']\s*(?:#.*)?$)?")
    values = {match[1] for line in lines if (match := assigned.match(line))}
    return next(iter(values)) if len(values) == 1 else None


def _header(lines: Sequence[str], index: int) -> int | None:
    """The index of the line on which the innermost loop around a line begins."""
    if not 0 <= index < len(lines):
        return None
    indent = _indent(lines[index]) + 1
    for above in range(index, max(-1, index - MAX_LINES), -1):
        text = lines[above].strip()
        if not text or text.startswith("#") or _indent(lines[above]) >= indent:
            continue
        indent = _indent(lines[above])
        if HEADER.match(text):
            return above
        if SCOPE.match(text):
            return None
    return None


def _block(lines: Sequence[str], begin: int) -> list[str]:
    """The lines of a loop, up to the first one that is not deeper than its beginning but closes a bracket."""
    indent = _indent(lines[begin])
    end = begin + 1
    while end < min(len(lines), begin + MAX_LINES):
        text = lines[end].strip()
        if text and not text.startswith(("#", ")", "]", "}")) and _indent(lines[end]) <= indent:
            break
        end += 1
    return list(lines[begin:end])


def _indent(line: str) -> int:
    expanded = line.expandtabs()
    return len(expanded) - len(expanded.lstrip())


def _is_bounded(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    if not isinstance(loop, ast.While):
        return not _is_endless(loop.iter)
    counted = set(_counted(loop.body))
    leaving = (node for node in ast.walk(loop) if isinstance(node, ast.If) and _may_leave(node))
    return any(_ends_by(test, counted) or _is_work(test) for test in (loop.test, *(node.test for node in leaving)))


def _is_endless(iterated: ast.expr) -> bool:
    """Whether what a ``for`` iterates over has no end."""
    if not isinstance(iterated, ast.Call):
        return False
    name = _name(iterated.func)
    return (name in ENDLESS and len(iterated.args) < 2 + (name == "count")) or (
        name == "iter" and len(iterated.args) == 2
    )


def _counted(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names that each pass through a loop increments or decrements unconditionally."""
    for node in body:
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
            yield _name(node.target)
        elif isinstance(node, ast.Try):
            yield from _counted([*node.body, *(one for handler in node.handlers for one in handler.body)])
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _counted(node.body)


def _may_leave(node: ast.If) -> bool:
    """Whether a branch leaves the loop."""
    return any(isinstance(one, (ast.Break, ast.Return, ast.Raise)) for one in (*node.body, *node.orelse))


def _ends_by(test: ast.expr, counted: set[str]) -> bool:
    """Whether a condition compares the time or a count of attempts."""
    names = {_name(node) for node in ast.walk(test) if isinstance(node, (ast.Name, ast.Attribute))}
    if any(CLOCK.fullmatch(name) for name in names - _called_with_timeout(test)):
        return True
    return any(isinstance(node, ast.Compare) for node in ast.walk(test)) and bool(names & counted)


def _called_with_timeout(test: ast.expr) -> set[str]:
    """The names that are only arguments of calls, as in ``event.wait(timeout)``."""
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    given = [*(one for call in calls for one in call.args), *(one.value for call in calls for one in call.keywords)]
    return {_name(node) for one in given for node in ast.walk(one) if isinstance(node, (ast.Name, ast.Attribute))}


def _without_result(loop: ast.While | ast.For | ast.AsyncFor, poll: int) -> Iterator[ast.AST]:
    """The nodes that a pass through a loop executes if the poll in this line returned no value."""
    if isinstance(loop, ast.While):
        yield loop.test
    yield from _executed(loop.body, poll)


def _executed(body: Iterable[ast.stmt], poll: int) -> Iterator[ast.AST]:
    """The statements that are executed always, or if the poll returned no value; up to one that leaves."""
    for node in body:
        if isinstance(node, ast.If):
            yield node.test
            is_failure = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
            yield from _executed(node.body if is_failure else node.orelse, poll)
            if is_failure and isinstance(node.body[-1], LEAVES):
                return
        elif isinstance(node, ast.Try):
            is_polling = any(_is_on(one, poll) for one in node.body)
            yield from _executed([one for one in node.body if not is_polling or one.lineno <= poll], poll)
            for handler in node.handlers:
                yield from _executed(handler.body, poll)
            yield from _executed(node.finalbody, poll)
            if is_polling and node.handlers and all(isinstance(one.body[-1], LEAVES) for one in node.handlers):
                return
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in node.items)
            yield from _executed(node.body, poll)
        elif not isinstance(node, OTHER_TIMES) and not _is_on(node, poll):
            yield node


def _is_on(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _is_work(executed: ast.AST) -> bool:
    """Whether it calls something that may unblock others."""
    calls = (node.func for node in ast.walk(executed) if isinstance(node, ast.Call))
    return any(not HARMLESS.fullmatch(_name(called)) or _is_outside(called) for called in calls)


def _is_outside(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and _name(called.value).lstrip("_") in OUTSIDE


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
