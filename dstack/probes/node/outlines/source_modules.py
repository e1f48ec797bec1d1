"""The parsed files of a program, and what their statements assign."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from dstack.probes.node.redaction import masked_source

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAX_LINE = 160
RAY = re.compile(r"\bray\b|\.remote\(")


def own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body, without those within the functions and classes that it defines."""
    waiting = [*body][::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, NAMED):
            waiting += node.decorator_list[::-1]
        elif not isinstance(node, ast.Lambda):
            waiting += [*ast.iter_child_nodes(node)][::-1]


def own_definitions(body: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """The functions and classes that statements define, without those within them."""
    for node in body:
        if isinstance(node, NAMED):
            yield node
        else:
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                inner = getattr(node, field, None)
                if isinstance(inner, list):
                    yield from own_definitions(inner)


class SourceModule:
    """A file of the program, parsed; ``name`` is that of its module, and ``is_main`` says that it is the script.

    Only a file that ``mentions_ray`` may have tasks and actors, but for those that another one makes remote.
    """

    def __init__(self, path: str, name: str, lines: Sequence[str], tree: ast.Module, *, is_main: bool = False) -> None:
        self.path = path
        self.name = name
        self.tree = tree
        self.is_main = is_main
        self._lines = lines
        self.mentions_ray = any(map(RAY.search, lines))
        self.is_package = os.path.basename(path) == "__init__.py"

    @property
    def text(self) -> str:
        """The whole source."""
        return "\n".join(self._lines)

    def line(self, number: int) -> str:
        """The text of a line without secrets."""
        return masked_source(self._lines[number - 1][:MAX_LINE].strip()) if 0 < number <= len(self._lines) else ""

    def qualified(self, name: str) -> str:
        """A name of the module, as the script would write it."""
        return name if self.is_main else f"{self.name}.{name}"

    def start_of(self, node: ast.ImportFrom) -> str:
        """The module that names are imported from."""
        package = (self.name if self.is_package else self.name.rpartition(".")[0]).split(".")
        start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
        return ".".join(filter(None, (start, node.module)))


def captured_names(body: Iterable[ast.AST]) -> frozenset[str]:
    """The names that functions and lambdas within a body use."""
    inner = (node for node in own_nodes(body) if isinstance(node, (*NAMED, ast.Lambda)))
    names = (node for one in inner for node in ast.walk(one) if isinstance(node, ast.Name))
    return frozenset(node.id for node in names if isinstance(node.ctx, ast.Load))


def bindings_of(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """The names that a node defines, imports or assigns, with what they get: None where nothing is known of it."""
    if isinstance(node, NAMED):
        yield node.name, node
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from ((name, None) for name in node.names)
    elif (target := _target_of(node)) is not None:
        yield from ((one.id, None) for one in ast.walk(target) if isinstance(one, ast.Name))


def _target_of(node: ast.AST) -> ast.AST | None:
    """What a node assigns something to of which nothing is known."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign, ast.NamedExpr)):
        return node.target
    if isinstance(node, ast.withitem):
        return node.optional_vars
    return node if isinstance(node, (ast.Tuple, ast.List)) and isinstance(node.ctx, ast.Store) else None


def attributes_of(tree: ast.AST) -> Iterator[tuple[ast.Attribute, Sequence[ast.AST]]]:
    """The attributes in a tree, each with the nodes around it, the innermost first."""
    waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while waiting:
        node, parents = waiting.pop()
        if isinstance(node, ast.Attribute):
            yield node, parents
        waiting += [(one, (node, *parents)) for one in ast.iter_child_nodes(node)]


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The targets of assignments with what they get; None for a part of it."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield target, node.value
                if isinstance(target, (ast.Tuple, ast.List)):
                    yield from _parts(target.elts, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.AugAssign):
            yield node.target, None


def _parts(targets: Sequence[ast.expr], value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The targets of one assignment with the values at their places, if each has one."""
    values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
    is_paired = len(values) == len(targets) and not any(isinstance(one, ast.Starred) for one in (*targets, *values))
    yield from zip(targets, values, strict=True) if is_paired else ((one, None) for one in targets)
