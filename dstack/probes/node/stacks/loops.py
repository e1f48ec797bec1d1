"""Finds the loop around a line in its source: what can end it, what it calls, and whether it does nothing but poll.

Of a line in no loop, the whole function counts: called in a loop, it may end that by an exception, or by what it
returns. Only the lines of the loop or the function are parsed; their indentation delimits them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dstack.observed.processes import ActorName, LoopBody
from dstack.probes.node.stacks.function_names import OWN_FUNCTIONS, QUIET
from dstack.probes.node.stacks.polling_proof import Block, Unproven, prove_that_it_polls
from dstack.probes.node.stacks.source_syntax import FileNames, dotted, expression_text, last_name

MAX_LINES = 400
"""The longest loop that is parsed, and how far above a line its beginning is searched for."""
MAX_FUNCTION_LINES = 60
"""The longest function outside of a loop that is parsed: a longer one does more than poll."""
HEADER = re.compile(r"(async\s+)?(for|while)\b")
SCOPE = re.compile(r"(async\s+)?(def|class)\b")
GET_ACTOR = "get_actor"
FULL_QUEUE = "PendingCallsLimitExceeded"
"""What Ray raises for a call of an actor that has ``max_pending_calls`` of the same caller; Ray 2.46 and 2.60."""
MAX_CALLS, MAX_NAME = 6, 60


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """The loop around a line, None in a function outside of loops, and whether that loop or function only polls."""

    only_polls: bool = False
    body: LoopBody | None = None


NOTHING = FoundLoop()


def loop_at(lines: Sequence[str], line: int, names: Callable[[], FileNames]) -> FoundLoop:
    """The innermost loop around a line, counted from 1, in its function. What cannot be parsed has no known loop.

    ``names`` returns those of the file, where they are needed.
    """
    begin = _header(lines, line - 1)
    if begin is None:
        return NOTHING
    text = _block(lines, begin)
    if not HEADER.match(text[0].strip()) and len(text) > MAX_FUNCTION_LINES:
        return NOTHING
    try:
        block = ast.parse(textwrap.dedent("\n".join(text))).body[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError):
        return NOTHING
    if not isinstance(block, Block):
        return NOTHING
    only_polls, until = True, ""
    try:
        until = prove_that_it_polls(block, line - begin, names())
    except Unproven as unproven:
        only_polls, until = False, unproven.until
    except RecursionError:
        only_polls = False
    is_loop = not isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef))
    return FoundLoop(only_polls, _body(block, begin, lines, until) if is_loop else None)


def _body(loop: Block, begin: int, lines: Sequence[str], until: str) -> LoopBody:
    """The lines of a loop that begins below this number of lines, and its calls in the order of its lines."""
    found = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    calls = sorted(found, key=lambda node: (node.lineno, node.col_offset))
    names = [name for node in calls if (name := dotted(node.func)) and name not in OWN_FUNCTIONS]
    telling = [name for name in names if not QUIET.fullmatch(name.rpartition(".")[2]) and len(name) <= MAX_NAME]
    actors = (_asked(node, lines) for node in calls if last_name(node.func) == GET_ACTOR)
    return LoopBody(
        first_line=begin + 1,
        last_line=begin + (loop.end_lineno or loop.lineno),
        calls=tuple(dict.fromkeys(telling))[:MAX_CALLS],
        sleeps=any(name.rpartition(".")[2] == "sleep" for name in names),
        asks_for=tuple(dict.fromkeys(filter(None, actors)))[:MAX_CALLS],
        catches_full_queue=any(map(_catches_full_queue, ast.walk(loop))),
        over=expression_text(loop.iter) if isinstance(loop, (ast.For, ast.AsyncFor)) else "",
        until=until,
    )


def _asked(call: ast.Call, lines: Sequence[str]) -> ActorName | None:
    """The actor that ``ray.get_actor`` is called for; None if its namespace, or what has its name, is unknown."""
    arguments = dict(zip(("name", "namespace"), call.args, strict=False)) | {
        one.arg: one.value for one in call.keywords
    }
    name, namespace = arguments.get("name"), arguments.get("namespace")
    space = _text(namespace, lines) if namespace else ""
    text = _text(name, lines) if name else None
    named = name.id if text is None and isinstance(name, ast.Name) else text
    if space is None or not named or max(len(named), len(space)) > MAX_NAME:
        return None
    return ActorName(name=named, namespace=space, is_variable=text is None)


def _catches_full_queue(node: ast.AST) -> bool:
    """Whether it is a handler that names the exception of a full queue, perhaps among others."""
    if not isinstance(node, ast.ExceptHandler) or node.type is None:
        return False
    return any(last_name(one) == FULL_QUEUE for one in getattr(node.type, "elts", [node.type]))


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
    """The index of the line on which the innermost loop around a line begins; outside of loops, its function."""
    if not 0 <= index < len(lines):
        return None
    indent = _indent(lines[index]) + 1
    for above in range(index, max(-1, index - MAX_LINES), -1):
        text = lines[above].strip()
        if not text or text.startswith("#") or _indent(lines[above]) >= indent:
            continue
        indent = _indent(lines[above])
        if HEADER.match(text) or SCOPE.match(text):
            return above
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
