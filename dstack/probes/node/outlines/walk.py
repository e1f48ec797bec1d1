"""Walks the statements of a function, in the order of its source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from dstack.observed.outlines import Step
from dstack.probes.node.outlines.definitions import (
    Arguments,
    Constant,
    Either,
    External,
    Function,
    FunctionInfo,
    Instance,
    Items,
    Lock,
    Maker,
    Module,
    Program,
    Scope,
    Value,
)
from dstack.probes.node.outlines.expressions import Expressions
from dstack.probes.node.outlines.source_modules import SourceModule, captured_names
from dstack.probes.node.outlines.steps import Effect, Running, TooManySteps
from dstack.probes.node.outlines.values import CHOSEN, element_of, joined

MAX_LOOPS = 2
"""The bodies of loops that are walked twice, each within the other: what one pass leaves, the next one may wait for."""
LIMITS = frozenset(("timeout", "timeout_at", "move_on_after", "move_on_at", "fail_after", "fail_at"))
"""Contexts of asyncio, anyio and trio that end what is in them."""
LASTING = (*CHOSEN, Constant, Either, External, Instance, Lock, Maker, Module)
"""What an expression is wherever it is evaluated."""


class Walk(Expressions):
    """The walk of one function with its helpers."""

    def run_body(self, body: Sequence[ast.AST]) -> None:
        """Walk the statements of a function, or the expression of a lambda."""
        if len(body) == 1 and isinstance(body[0], ast.expr):
            self.steps.current.returned.append(self.value(body[0]))
        else:
            self._run([one for one in body if isinstance(one, ast.stmt)])

    def _run(self, body: Sequence[ast.stmt]) -> bool:
        """Walk a block; whether what follows it is not reached."""
        for one in body:
            run: Callable[[ast.stmt], bool | None] | None = getattr(self, f"_run_{type(one).__name__}", None)
            if run is None:
                self._of_parts(one)
            elif run(one):
                return True
        return False

    def _run_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        value = self.program.defined(node)
        running = self.steps.current
        running.names[node.name] = Function(value.info, closure=running) if isinstance(value, Function) else value

    _run_AsyncFunctionDef = _run_ClassDef = _run_FunctionDef

    def _run_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        running = self.steps.current
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            running.names[name] = self.program.imported(running.module, node, name)

    _run_ImportFrom = _run_Import

    def _run_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _run_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def _run_AugAssign(self, node: ast.AugAssign) -> None:
        base, added = self.value(node.target), self.value(node.value)
        if isinstance(base, Items) and isinstance(added, Items):
            self._note_shared(node.target, [added])
            for one in added.elements:
                base.add(one)
        else:
            self.steps.escape([added])
            self.assign(node.target, None)

    def _run_Return(self, node: ast.Return) -> bool:
        self.steps.current.returned.append(self.value(node.value) if node.value else Constant(None))
        self.steps.current.may_have_left = True
        return True

    def _run_Raise(self, node: ast.Raise) -> bool:
        self._of_parts(node)
        self.steps.current.may_have_left = True
        return True

    def _run_Break(self, node: ast.Break | ast.Continue) -> bool:
        self.steps.current.may_have_skipped = True
        return True

    _run_Continue = _run_Break

    def _run_If(self, node: ast.If) -> bool:
        decided = self.decided(node.test)
        self.value(node.test)
        if decided is not None:
            return self._run(node.body if decided else node.orelse)
        return self._branch([lambda: self._run(node.body), lambda: self._run(node.orelse)])

    def _branch(self, branches: Sequence[Callable[[], bool]]) -> bool:
        """Walk blocks of which one is run; whether what follows them is not reached."""
        running, since = self.steps.current, len(self.steps.drafts)
        before = running.names
        ends: list[dict[str, Value]] = []
        for branch in branches:
            running.names = dict(before)
            with self.steps.in_branch():
                has_ended = branch()
            if not has_ended:
                ends.append(running.names)
        names = dict.fromkeys(name for end in ends for name in end)
        running.names = {name: joined([end.get(name) for end in ends], since) for name in names} if ends else before
        return not ends

    def _run_For(self, node: ast.For | ast.AsyncFor) -> bool:
        iterated = self.value(node.iter)

        def run_once() -> None:
            self.take_next(node.iter, iterated, is_async=isinstance(node, ast.AsyncFor))
            self.assign(node.target, element_of(iterated, all_of_them=True))
            self._run(node.body)

        self._loop(node, run_once)
        return self._run(node.orelse)

    _run_AsyncFor = _run_For

    def _run_While(self, node: ast.While) -> bool:
        def run_once() -> None:
            self.value(node.test)
            self._run(node.body)

        self._loop(node, run_once)
        return self._run(node.orelse)

    def _loop(self, node: ast.stmt, run_once: Callable[[], None]) -> None:
        """Walk the body of a loop, twice if it has steps; it is taken to run at least once."""
        running, since = self.steps.current, len(self.steps.drafts)
        with self.steps.in_loop(node.lineno):
            run_once()
            if len(self.steps.drafts) > since and len(self.steps.loops) <= MAX_LOOPS:
                running.may_have_skipped = False
                run_once()

    def _run_With(self, node: ast.With | ast.AsyncWith) -> bool:
        taken: list[tuple[ast.expr, Lock, int | None]] = []
        with ExitStack() as limits:
            for item in node.items:
                value = self.value(item.context_expr)
                if isinstance(value, Lock):
                    taken.append((item.context_expr, value, self.acquire(item.context_expr, value)))
                limits.enter_context(self.steps.in_time_limit(_is_limit(item.context_expr)))
                if item.optional_vars is not None:
                    entered = element_of(value) if isinstance(value, Items) else value
                    self.assign(item.optional_vars, entered if isinstance(value, (Instance, Items)) else None)
            held = sum(not lock.is_async for _, lock, acquired in taken if acquired is not None)
            self.steps.held += held
            has_ended = self._run(node.body)
            self.steps.held -= held
            for expression, lock, acquired in taken[::-1]:
                released = self.release(expression, lock)
                if released is not None and acquired is not None:
                    self.steps.drafts[released].is_optional = self.steps.drafts[acquired].is_optional
        return has_ended

    _run_AsyncWith = _run_With

    def _run_Try(self, node: ast.Try) -> bool:
        running = self.steps.current
        left, skipped = running.may_have_left, running.may_have_skipped
        has_ended = self._run(node.body) or self._run(node.orelse)
        handlers = [_Handler(self, handler) for handler in node.handlers]
        if handlers:
            has_ended = self._branch([lambda: has_ended, *handlers])
        after = running.may_have_left, running.may_have_skipped
        running.may_have_left, running.may_have_skipped = left, skipped
        ends_there = self._run(node.finalbody)
        running.may_have_left |= after[0]
        running.may_have_skipped |= after[1]
        return has_ended or ends_there

    _run_TryStar = _run_Try

    def run_handler(self, handler: ast.ExceptHandler) -> bool:
        """Walk what handles an exception."""
        return self._run(handler.body)

    def _run_Match(self, node: ast.Match) -> bool:
        self.value(node.subject)
        self._branch([_Case(self, case) for case in node.cases] + [lambda: False])
        return False

    def run_case(self, case: ast.match_case) -> bool:
        """Walk what is run where a pattern matches."""
        for name in ast.walk(case.pattern):
            if isinstance(name, (ast.MatchAs, ast.MatchStar)) and name.name:
                self.steps.current.names[name.name] = None
        self.value(case.guard)
        return self._run(case.body)


class _Handler:
    """Walks an exception's handler."""

    def __init__(self, walk: Walk, handler: ast.ExceptHandler) -> None:
        self._walk = walk
        self._handler = handler

    def __call__(self) -> bool:
        return self._walk.run_handler(self._handler)


class _Case:
    """Walks a case of a match statement."""

    def __init__(self, walk: Walk, case: ast.match_case) -> None:
        self._walk = walk
        self._case = case

    def __call__(self) -> bool:
        return self._walk.run_case(self._case)


def _is_limit(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in LIMITS and not (len(node.args) == 1 and ast.dump(node.args[0]) == "Constant(value=None)")


def evaluate(node: ast.expr, scope: Scope) -> Value:
    """What an expression is wherever it is evaluated; None if that may change."""
    evaluated = scope.program.evaluated
    if node in evaluated:
        return None  # it is defined by itself
    walk = Static(scope.program)
    walk.steps.running.append(Running(scope, frozenset(), is_static=True))
    evaluated.add(node)
    try:
        return _lasting(walk.value(node))
    except TooManySteps:
        return None
    finally:
        evaluated.discard(node)


class Static(Walk):
    """The walk of an expression alone, without that of functions."""

    def inline(self, function: Function, arguments: Arguments, node: ast.expr, effect: Effect | None = None) -> Value:
        """No function is walked."""
        return None


def _lasting(value: Value) -> Value:
    if isinstance(value, Items) and value.elements and all(isinstance(one, LASTING) for one in value.elements):
        return value
    return value if isinstance(value, LASTING) else None


def steps_of(program: Program, info: FunctionInfo, shared: Instance | None = None) -> tuple[Step, ...]:
    """The steps of a function, or of a method of the shared object. Raises TooManySteps and RecursionError."""
    walk = Walk(program, shared)
    running = Running(info.scope, info.captured, info)
    walk.steps.running.append(running)
    if shared is not None and info.is_bound and info.parameters:
        running.names[info.parameters[0]] = shared
    walk.run_body(info.body)
    walk.steps.escape([*running.returned, running.yielded])
    return walk.steps.finished()


def steps_of_script(program: Program, module: SourceModule) -> tuple[Step, ...]:
    """The steps of the program's own script. Raises TooManySteps and RecursionError."""
    walk = Walk(program)
    scope = program.scopes[module.path]
    walk.steps.running.append(Running(scope, captured_names(module.tree.body)))
    walk.run_body(module.tree.body)
    return walk.steps.finished()
