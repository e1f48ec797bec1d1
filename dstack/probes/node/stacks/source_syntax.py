"""What the source of a program says: the names of its files, and the parts of its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dstack.probes.node.redaction import MASK, masked_local, masked_source
from dstack.probes.node.stacks.function_names import CHANGES

EVENTS = re.compile(r"(\w+)\s*=\s*threading\.Event\(|(\w+)\s*:\s*threading\.Event\b")
SEVERAL_EVENTS = re.compile(r"\s*([\w., ]+?)\s*=\s*threading\.Event\(\)(\s*,\s*threading\.Event\(\))+\s*(#.*)?$")
PASSED_SET = re.compile(r"(\w+)\.set\b(?!\()")
CALLBACKS = re.compile(
    r"lambda\b.*\.set\(|callback|_on_completed|\bsignal\.|call_(later|at|soon)|add_reader|\batexit\b|weakref"
)
"""How code comes to be called by something else than a thread of Python's."""
TELLING = ("def ", "async ", "global ", "nonlocal ", "from ")
DEFINITION = re.compile(r"\s*(?:async\s+)?def\s+(\w+)")
DECLARATION = re.compile(r"\s*(?:global|nonlocal)\s+(.*)")
IMPORTED_SLEEP = re.compile(r"\s*from\s+(time|asyncio|trio|anyio|gevent|eventlet)\s+import\b.*\bsleep\b")
MAX_TEXT = 60
STRING = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class FileNames:
    """What the lines of a file say about names, also outside of a loop.

    ``defined`` are the functions and methods, also properties. ``shared`` are variables that another function than
    their own may assign. ``flags`` are events of ``threading`` that only Python code sets, by ``flag.set()``, and no
    callback.
    """

    defined: frozenset[str]
    shared: frozenset[str]
    flags: frozenset[str]
    has_sleep: bool

    @staticmethod
    def of(lines: Sequence[str]) -> FileNames:
        """The names of a file with these lines."""
        telling = [line for line in lines if line.lstrip().startswith(TELLING)]
        shared = (match[1].partition("#")[0] for line in telling if (match := DECLARATION.match(line)))
        return FileNames(
            defined=frozenset(match[1] for line in telling if (match := DEFINITION.match(line))),
            shared=frozenset(name.strip() for names in shared for name in names.split(",")),
            flags=_flags(lines),
            has_sleep=any(map(IMPORTED_SLEEP.match, telling)),
        )


def _flags(lines: Sequence[str]) -> frozenset[str]:
    """The events that only code of threads sets; none in a file that makes callbacks of another kind."""
    if any(map(CALLBACKS.search, lines)):
        return frozenset()
    telling = [line for line in lines if "Event" in line or ".set" in line]
    events = {match[1] or match[2] for line in telling for match in EVENTS.finditer(line)}
    several = (match for line in telling if (match := SEVERAL_EVENTS.match(line)))
    events.update(name.strip().rpartition(".")[2] for match in several for name in match[1].split(","))
    return frozenset(events - {match[1] for line in telling for match in PASSED_SET.finditer(line)})


def dotted(node: ast.AST) -> str:
    """``ray.nodes``; empty for what is not simply named."""
    if isinstance(node, ast.Attribute):
        of = dotted(node.value)
        return f"{of}.{node.attr}" if of else ""
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """``nodes`` of ``ray.nodes``, also where that is an attribute of something that has no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def expression_text(expression: ast.expr) -> str:
    """The text of an expression, in at most 60 characters and without secrets."""
    try:
        text = masked_source(ast.unparse(expression))
        if any(masked_local(last_name(one), "") == MASK for one in ast.walk(expression)):
            text = STRING.sub(f"'{MASK}'", text)
    except (RecursionError, ValueError):
        return ""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def statement_at(block: ast.stmt, line: int) -> ast.stmt:
    """The innermost statement that contains this line."""
    inner = (one for one in statements_in(block) if one.lineno <= line <= (one.end_lineno or one.lineno))
    found = next(inner, None)
    return block if found is None else statement_at(found, line)


def statements_in(node: ast.stmt) -> list[ast.stmt]:
    """The statements directly inside of another one."""
    handlers = [one for handler in getattr(node, "handlers", ()) for one in handler.body]
    bodies = [one for name in ("body", "orelse", "finalbody") for one in getattr(node, name, ())]
    return [*bodies, *handlers]


def header_of(node: ast.stmt) -> list[ast.AST]:
    """The parts of a statement that are not other statements."""
    if isinstance(node, (ast.If, ast.While)):
        return [node.test]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.iter]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in node.items]
    return [] if statements_in(node) else [node]


def unconditional(body: Iterable[ast.stmt], value_of: Callable[[ast.expr], bool | None]) -> Iterator[ast.AST]:
    """The statements, and headers of statements, that a pass may execute though nothing came."""
    for node in body:
        yield from header_of(node)
        if isinstance(node, ast.If):
            value = value_of(node.test)
            yield from unconditional(node.body if value is not False else (), value_of)
            yield from unconditional(node.orelse if value is not True else (), value_of)
        else:
            yield from _targets(node)
            yield from unconditional(statements_in(node), value_of)


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    """The names that the header of a statement assigns, as of a ``for``."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.target
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        yield from (item.optional_vars for item in node.items if item.optional_vars is not None)


def change_of(node: ast.AST) -> tuple[ast.Call, ast.expr] | None:
    """The call that changes a list, a set or a dict, and that object, in a statement like ``done.append(one)``."""
    called = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Attribute):
        return None
    return (called, called.func.value) if CHANGES.fullmatch(called.func.attr) else None


def assigned_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a statement assigns or changes, with its value, None if that is not known."""
    explained: set[int] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Assign):
            yield from ((target, one.value) for target in one.targets)
            explained.update(id(name) for target in one.targets for name in names_in(target))
        elif isinstance(one, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            yield one.target, one.value
            explained.update(map(id, names_in(one.target)))
        elif isinstance(one, ast.comprehension):
            explained.update(map(id, names_in(one.target)))
        elif change := change_of(one):
            called, changed = change
            yield changed, called.args[0] if len(called.args) == 1 else None
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load) and id(one) not in explained:
            yield one, None


def stored_names(target: ast.expr) -> list[ast.Name]:
    """The names that a statement assigns with this target."""
    elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    found = [one.value if isinstance(one, ast.Starred) else one for one in elements]
    return [one for one in found if isinstance(one, ast.Name)]


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a part of a tree."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def names_in(node: ast.AST) -> Iterator[ast.Name]:
    """The names in a part of a tree."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Name))


def root_of(node: ast.expr) -> ast.expr:
    """``state`` of ``state.done[0]``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node
