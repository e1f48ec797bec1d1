"""Proves by the source of a loop, or of a function called in it, that it does nothing but poll.

A pass through it must be the same each time, as long as the poll has the same result. So what ends the loop is a
constant condition or one of the poll's result, and what a pass executes though nothing came is the poll, sleeping,
logging and pure functions of Python. All else may end it or may unblock others: a flag, an attribute, a property, a
function of the user, an iterator that ends, a counter, a time. What may be one of these is not proven.

Names are the poll's result if only the statement with the poll assigns them, or if they are computed from such names
alone. A name that is ``empty`` is false if nothing came; of any other, neither value is assumed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from dstack.probes.node.stacks import function_names as known
from dstack.probes.node.stacks.source_syntax import (
    FileNames,
    assigned_in,
    calls_in,
    change_of,
    dotted,
    expression_text,
    header_of,
    last_name,
    names_in,
    root_of,
    statement_at,
    statements_in,
    stored_names,
    unconditional,
)

Block = ast.While | ast.For | ast.AsyncFor | ast.FunctionDef | ast.AsyncFunctionDef
Value = Literal["empty", "any"]

REMOTE = ("remote", "options")
LEAVES = (ast.Break, ast.Return, ast.Raise)
OPPOSITES: tuple[tuple[type[ast.cmpop], type[ast.cmpop]], ...] = (
    (ast.Lt, ast.GtE),
    (ast.Gt, ast.LtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
)
OPPOSITE = {**dict(OPPOSITES), **{other: one for one, other in OPPOSITES}}
COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


class Unproven(Exception):
    """Something may end the loop: ``until`` is its condition, empty if it is none."""

    def __init__(self, condition: ast.expr | None = None, *, is_negated: bool = False) -> None:
        negated = _negated(condition) if condition is not None and is_negated else condition
        self.until = expression_text(negated) if negated is not None else ""


def prove_that_it_polls(block: Block, line: int, names: FileNames) -> str:
    """Raise :class:`Unproven` unless a loop, or a function, only polls by the call in this line of its own.

    A loop may also end by a flag that code of its process sets. That is returned as a condition, empty for none.
    """
    one_pass = Pass(block, line, names)
    try:
        one_pass.prove()
    except Unproven as unproven:
        unproven.until = unproven.until or one_pass.first_condition()
        raise
    return one_pass.flag


def _negated(condition: ast.expr) -> ast.expr:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return condition.operand
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1 and type(condition.ops[0]) in OPPOSITE:
        opposite = OPPOSITE[type(condition.ops[0])]()
        return ast.Compare(left=condition.left, ops=[opposite], comparators=condition.comparators)
    return ast.UnaryOp(op=ast.Not(), operand=condition)


class Pass:
    """One pass through a loop, or one call of a function, in which the poll had no result."""

    def __init__(self, block: Block, line: int, names: FileNames) -> None:
        self._block = block
        self._names = names
        self._is_function = isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef))
        self._assignments = list(assigned_in(block))
        self._assigned = {name.id for target, _ in self._assignments for name in stored_names(target)}
        self._refs = {
            name.id
            for target, value in self._assignments
            if value is not None and any(last_name(call.func) == "remote" for call in calls_in(value))
            for name in stored_names(target)
        }
        self._at = statement_at(block, line)
        self._polls = self._find_polls() if line <= (block.body[-1].end_lineno or line) else []
        self._is_polled = False
        self.flag = ""
        self._results: dict[str, Value] = {}
        self._others: set[str] = set()

    def prove(self) -> None:
        """Raise :class:`Unproven` unless a pass only polls."""
        if not self._polls and self._is_function:
            raise Unproven
        self._name_results()
        block = self._block
        if isinstance(block, ast.While):
            is_over = self._truth(block.test, is_negated=True) is False
            self._check(block.test)
            if is_over:
                raise Unproven  # it ends though nothing came, so another loop is around it
        elif isinstance(block, (ast.For, ast.AsyncFor)):
            _check_endless(block)
        elif any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in ast.walk(block)):
            raise Unproven
        self._execute(block.body, may_leave=False)
        if not self._is_polled:
            raise Unproven

    def first_condition(self) -> str:
        """The first condition that may end the loop, other than by the poll's result; empty if there is none."""
        if self._is_function:
            return ""
        loop = [(self._block.test, True)] if isinstance(self._block, ast.While) else []
        branches = (node for node in ast.walk(self._block) if isinstance(node, ast.If))
        leaving = ((node.test, False) for node in branches if any(map(_may_leave, node.body)))
        for test, is_negated in (*loop, *leaving):
            try:
                self._truth(test, is_negated=is_negated)
            except Unproven as unproven:
                return unproven.until
        return ""

    # The poll, and the names of its result

    def _find_polls(self) -> list[ast.Call]:
        """The only call in the line that does more than computing; in a line without one, all calls of actors."""
        own = [call for part in header_of(self._at) for call in calls_in(part) if not self._is_harmless(call)]
        if not own or any(map(self._is_call_of_actor, own)):
            return [call for call in calls_in(self._block) if self._is_call_of_actor(call)]
        limited = [inner for call in own for inner in _limited(call)]
        polls = [call for call in own if call not in limited]
        return polls if len(polls) == 1 else []

    def _is_call_of_actor(self, call: ast.Call) -> bool:
        """Whether it gets the result of a call that a pass makes: ``ray.get(actor.size.remote())``."""
        if last_name(call.func) == "remote":
            return any(one.value is call for one in ast.walk(self._block) if isinstance(one, ast.Await))
        is_new = any(last_name(inner.func) == "remote" for inner in calls_in(call))
        return last_name(call.func) == "get" and (is_new or any(name.id in self._refs for name in names_in(call)))

    def _name_results(self) -> None:
        """Name what depends on the poll's result alone, and all else that a pass assigns."""
        for target, value in self._assignments:
            if value is not None and any(map(self._is_poll, calls_in(value))):
                self._name(target, value)
        before = None
        while before != (before := (dict(self._results), set(self._others))):
            for node in unconditional([self._block], self._truth_or_none):
                for target, value in assigned_in(node):
                    self._name(target, value, is_added=isinstance(node, ast.AugAssign) or change_of(node) is not None)
            for name in self._assigned - self._others - self._names.shared:
                self._results.setdefault(name, "any")  # assigned only if something came

    def _name(self, target: ast.expr, value: ast.expr | None, *, is_added: bool = False) -> None:
        stored = stored_names(target)
        is_result = value is not None and self._is_result(value)
        is_shared = not self._names.shared.isdisjoint(name.id for name in stored)
        if value is None or not is_result or is_shared or (is_added and self._value(value) != "empty"):
            self._others.update(name.id for name in stored)
        elif not is_added:
            is_unpacked = isinstance(target, (ast.Tuple, ast.List))
            for number, name in enumerate(stored):
                is_empty = number == 0 and self._value(value, is_unpacked=is_unpacked) == "empty"
                is_same = self._results.get(name.id, "empty") == "empty"
                self._results[name.id] = "empty" if is_empty and is_same else "any"
        for name in stored:
            if name.id in self._others:
                self._results.pop(name.id, None)

    def _value(self, value: ast.expr, *, is_unpacked: bool = False) -> Value:
        """What a result is if nothing came; of several that are unpacked, the first."""
        value = value.value if isinstance(value, (ast.Await, ast.NamedExpr)) else value
        if isinstance(value, ast.Call) and self._is_poll(value):
            is_empty = known.EMPTY_IF_NOTHING.fullmatch(last_name(value.func)) and _is_of_several(value) is is_unpacked
            return "empty" if is_empty else "any"
        if isinstance(value, ast.Call) and known.KEEPS_EMPTY.fullmatch(dotted(value.func)) and len(value.args) == 1:
            return self._value(value.args[0])
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value == 0:
            return self._value(value.value, is_unpacked=True) if isinstance(value.value, ast.Call) else "any"
        return self._results.get(value.id, "any") if isinstance(value, ast.Name) else "any"

    def _is_result(self, value: ast.expr) -> bool:
        """Whether a value depends on the poll's result, and on nothing else that may change."""
        own = {
            name.id for one in ast.walk(value) if isinstance(one, ast.comprehension) for name in names_in(one.target)
        }
        try:
            return self._depends(value, own)
        except Unproven:
            return False

    def _depends(self, node: ast.AST, own: set[str]) -> bool:
        """Whether a value depends on the poll's result; unproven if it depends on what else may change.

        ``own`` are the names inside of the value, as those of a comprehension.
        """
        if isinstance(node, ast.Name):
            if node.id in self._names.shared or (node.id in self._assigned and node.id not in self._results):
                raise Unproven
            return node.id in self._results
        if isinstance(node, ast.Attribute):
            root = root_of(node)
            if not isinstance(root, ast.Name) or root.id not in {*self._results, *own}:
                raise Unproven
            return root.id in self._results
        if isinstance(node, ast.Call):
            return self._depends_on_call(node, own)
        if isinstance(node, (ast.Lambda, ast.Yield, ast.YieldFrom)):
            raise Unproven
        # not lazily: each part may be unproven
        return True in [self._depends(child, own) for child in ast.iter_child_nodes(node)]

    def _depends_on_call(self, call: ast.Call, own: set[str]) -> bool:
        if self._is_poll(call) or self._is_state_of_poll(call):
            return True
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_method = isinstance(call.func, ast.Attribute) and bool(known.METHODS.fullmatch(call.func.attr))
        if isinstance(call.func, ast.Attribute) and is_method:
            parts.append(call.func.value)
        depends = True in [self._depends(part, own) for part in parts]
        if not (depends if is_method else self._is_pure(call)):
            raise Unproven
        return depends

    def _is_poll(self, call: ast.Call) -> bool:
        return any(call is poll for poll in self._polls)

    def _polled(self) -> set[str]:
        """The objects that have the polled methods, as ``event`` of ``event.wait(1)``."""
        return {dotted(poll.func.value) for poll in self._polls if isinstance(poll.func, ast.Attribute)} - {""}

    def _is_state_of_poll(self, call: ast.Call) -> bool:
        """Whether it shows the state of the object that is polled, as ``event.is_set()``."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in known.STATES:
            return False
        return not call.args and dotted(call.func.value) in self._polled()

    def _is_flag(self, node: ast.AST) -> bool:
        """Whether it asks for the only flag of a loop, which another thread may set."""
        if self._is_function or "is_set" in self._names.defined:
            return False
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        is_asked = node.func.attr == "is_set" and last_name(node.func.value) in self._names.flags
        return is_asked and self.flag in ("", expression_text(node))

    # Conditions

    def _truth_or_none(self, test: ast.expr) -> bool | None:
        try:
            return self._truth(test)
        except Unproven:
            return None

    def _truth(self, test: ast.expr, *, is_negated: bool = False) -> bool | None:
        """The value of a condition if nothing came, None for either; unproven if it depends on what else may change.

        That ends the loop if the condition is true; with ``is_negated``, if it is false.
        """
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            value = self._truth(test.operand, is_negated=not is_negated)
            return None if value is None else not value
        if isinstance(test, ast.BoolOp):
            return self._truth_of_several(test, is_negated=is_negated)
        if self._is_flag(test):
            self.flag = expression_text(test)
            return False
        if not self._is_result(test):
            raise Unproven(test, is_negated=is_negated)
        if isinstance(test, ast.Call) and self._is_state_of_poll(test):
            return known.STATES[last_name(test.func)]
        if isinstance(test, ast.Compare):
            return self._truth_of_length(test)
        return False if self._value(test) == "empty" else None

    def _truth_of_several(self, test: ast.BoolOp, *, is_negated: bool) -> bool | None:
        """The value of ``and`` and ``or``: the first decisive operand decides, unless one before it is open."""
        decisive = isinstance(test.op, ast.Or)
        values = []
        for operand in test.values:
            values.append(self._truth(operand, is_negated=is_negated))
            if values[-1] is decisive:
                break
        if values[-1] is decisive:
            return decisive if None not in values else None
        return None if None in values else not decisive

    def _truth_of_length(self, test: ast.Compare) -> bool | None:
        """The value of ``len(done) == 0`` and the like."""
        left, right = test.left, test.comparators[0]
        is_length = isinstance(left, ast.Call) and dotted(left.func) == "len" and self._value(left) == "empty"
        if not is_length or len(test.ops) > 1 or not isinstance(right, ast.Constant) or type(right.value) is not int:
            return None
        compare = COMPARE.get(type(test.ops[0]))
        return compare(0, right.value) if compare else None

    # What a pass executes

    def _execute(self, body: Iterable[ast.stmt], *, may_leave: bool) -> bool:
        """Whether the end of these statements is reached; unproven if one of them may leave the loop, or does work."""
        return all(self._statement(statement, may_leave=may_leave) for statement in body)

    def _statement(self, node: ast.stmt, *, may_leave: bool) -> bool:
        if isinstance(node, ast.If):
            return self._branch(node, may_leave=may_leave)
        if isinstance(node, ast.Try):
            return self._try(node, may_leave=may_leave)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return self._with(node, may_leave=may_leave)
        if isinstance(node, ast.For):
            return self._inner_loop(node)
        if isinstance(node, LEAVES):
            return self._leave(node, may_leave=may_leave)
        if isinstance(node, ast.Assert):
            self._truth(node.test, is_negated=True)
        elif not isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Pass, ast.Continue)):
            raise Unproven
        self._check(node)
        return not isinstance(node, ast.Continue)

    def _branch(self, node: ast.If, *, may_leave: bool) -> bool:
        try:
            value = self._truth(node.test)
            may_leave = may_leave or value is None
        except Unproven as unproven:
            value = None
            if any(map(_may_leave, node.body)):
                raise
            if any(map(_may_leave, node.orelse)):
                raise Unproven(node.test, is_negated=True) from unproven
        self._check(node.test)
        bodies = [body for body, is_other in ((node.body, False), (node.orelse, True)) if value is not is_other]
        # if it depends on the result whether a branch leaves, a loop that goes on has not been in that branch
        staying = [body for body in bodies if not (may_leave and body and self._is_end(body[-1]))]
        return True in [self._execute(body, may_leave=may_leave) for body in staying]

    def _is_end(self, last: ast.stmt) -> bool:
        return isinstance(last, ast.Raise if self._is_function else LEAVES)

    def _try(self, node: ast.Try, *, may_leave: bool) -> bool:
        """A block around the poll: if that raises an exception, its handler is executed."""
        raising = next((one for one in node.body if self._may_raise(one)), None)
        if raising is None:
            is_through = self._execute([*node.body, *node.orelse], may_leave=may_leave)
        else:
            handler = next((one for one in node.handlers if _catches(one)), None)
            if handler is None:
                raise Unproven
            self._execute_until(raising, node.body)
            is_through = self._execute(handler.body, may_leave=may_leave)
        return self._execute(node.finalbody, may_leave=may_leave) and is_through

    def _with(self, node: ast.With | ast.AsyncWith, *, may_leave: bool) -> bool:
        """The condition whose ``wait`` is the poll, or a block that ignores the exception of the poll."""
        raising = next((one for one in node.body if self._may_raise(one)), None)
        if all(map(_suppresses, node.items)) and raising is not None:
            self._execute_until(raising, node.body)
            return True
        if not all(dotted(item.context_expr) in self._polled() for item in node.items):
            raise Unproven
        return self._execute(node.body, may_leave=may_leave)

    def _execute_until(self, raising: ast.stmt, body: Sequence[ast.stmt]) -> None:
        """The statements up to the poll, whose exception is handled."""
        self._execute(body[: body.index(raising)], may_leave=False)
        if statements_in(raising):
            raise Unproven
        self._check(raising, is_caught=True)

    def _inner_loop(self, node: ast.For) -> bool:
        """A loop over the result, which is empty, or one that only prints."""
        self._check(node.iter)
        if self._value(node.iter) != "empty":
            if any(map(_may_leave, node.body)):
                raise Unproven
            self._execute([*node.body, *node.orelse], may_leave=False)
        return True

    def _leave(self, node: ast.stmt, *, may_leave: bool) -> bool:
        if isinstance(node, ast.Return) and self._is_function:
            if node.value is not None:
                self._check(node.value)
                self._depends(node.value, set())
        elif not may_leave:
            raise Unproven
        return False

    def _check(self, node: ast.AST, *, is_caught: bool = False) -> None:
        """Unproven unless all that is called and awaited is the poll, or harmless."""
        remote = (one.value for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr in REMOTE)
        called = {id(one) for one in (*remote, *(poll.func for poll in self._polls))}
        for one in ast.walk(node):
            if isinstance(one, (ast.Yield, ast.YieldFrom, ast.Lambda)):
                raise Unproven
            if isinstance(one, ast.Await) and not self._is_known_await(one):
                raise Unproven
            if isinstance(one, ast.Attribute) and one.attr in self._names.defined and id(one) not in called:
                raise Unproven  # a property, or a function of the user's
            if isinstance(one, ast.Call) and self._is_poll(one):
                self._check_poll(one, is_caught=is_caught)
            elif isinstance(one, ast.Call) and not self._is_allowed(one):
                raise Unproven

    def _check_poll(self, poll: ast.Call, *, is_caught: bool) -> None:
        """Unproven if it raises an exception after its timeout, or if what is polled or its timeout may change."""
        self._is_polled = True
        if self._raises(poll) and not is_caught:
            raise Unproven
        for argument in (*poll.args, *poll.keywords):
            changed = {name.id for name in names_in(argument)} & self._others - self._refs
            is_timeout = isinstance(argument, ast.keyword) and "timeout" in (argument.arg or "")
            if changed and not (is_timeout and all(map(self._is_computed, changed))):
                raise Unproven
        if any(known.CLOCKS.fullmatch(dotted(call.func)) for call in calls_in(poll)):
            raise Unproven

    def _is_computed(self, name: str) -> bool:
        """Whether all that a pass assigns to a name is computed, as a timeout that is doubled."""
        values = [value for target, value in self._assignments if name in {one.id for one in stored_names(target)}]
        return all(value is not None and all(map(self._is_pure, calls_in(value))) for value in values)

    def _raises(self, poll: ast.Call) -> bool:
        return not self._is_call_of_actor(poll) and raises_if_nothing(poll)

    def _may_raise(self, node: ast.AST) -> bool:
        """Whether a statement has a poll that raises an exception if nothing came."""
        return any(self._is_poll(call) and self._raises(call) for call in calls_in(node))

    def _is_known_await(self, node: ast.Await) -> bool:
        called = node.value
        return isinstance(called, ast.Call) and (self._is_poll(called) or self._is_harmless(called))

    def _is_allowed(self, call: ast.Call) -> bool:
        """Whether a call in a pass is harmless, or belongs to the poll."""
        if self._is_harmless(call) or self._is_state_of_poll(call) or self._is_flag(call):
            return True
        if last_name(call.func) in REMOTE:
            return any(map(self._is_call_of_actor, self._polls))
        if any(call is inner for poll in self._polls for inner in _limited(poll)):
            return True
        if _is_addition(call):
            return all(self._value(argument) == "empty" for argument in call.args)
        return bool(known.METHODS.fullmatch(last_name(call.func))) and self._is_result(call)

    def _is_harmless(self, call: ast.Call) -> bool:
        name = dotted(call.func)
        if name == "sleep":
            return self._names.has_sleep and name not in self._names.defined
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, (ast.Constant, ast.JoinedStr)):
            return call.func.attr in ("format", "join")
        if known.SLEEPS.fullmatch(name) or known.CLOCKS.fullmatch(name) or known.LOGS.fullmatch(name):
            return name not in self._names.defined
        return self._is_pure(call) or (bool(known.VIEWS.fullmatch(name)) and not call.args)

    def _is_pure(self, call: ast.Call) -> bool:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        return known.PURE.fullmatch(name) is not None and name not in self._names.defined


def raises_if_nothing(poll: ast.Call) -> bool:
    """Whether a poll raises an exception if nothing came: it has a timeout, and no name of one that returns."""
    if known.RETURNING.fullmatch(last_name(poll.func)):
        return False
    is_timed = any(keyword.arg is None or "timeout" in keyword.arg for keyword in poll.keywords)
    numbers = (one for one in poll.args if isinstance(one, ast.Constant) and type(one.value) in (int, float))
    return is_timed or last_name(poll.func) == "wait_for" or next(numbers, None) is not None


def _check_endless(loop: ast.For | ast.AsyncFor) -> None:
    """Unproven if what a ``for`` iterates over may end: all but iterators of ``itertools``, and ``iter(int, 1)``."""
    iterated = loop.iter
    arguments = iterated.args if isinstance(iterated, ast.Call) else []
    name = last_name(iterated.func) if isinstance(iterated, ast.Call) else ""
    is_never = name == "iter" and len(arguments) == 2 and dotted(arguments[0]) in ("int", "object")
    if not (name == "count" or (name in ("cycle", "repeat") and len(arguments) == 1) or is_never):
        raise Unproven


def _is_of_several(call: ast.Call) -> bool:
    """Whether a ``wait`` returns what is done and what is not."""
    return bool(known.OF_SEVERAL.fullmatch(dotted(call.func)))


def _limited(call: ast.Call) -> list[ast.Call]:
    """The wait that a call of ``asyncio.wait_for`` limits."""
    inner = call.args[0] if last_name(call.func) == "wait_for" and call.args else None
    return [inner] if isinstance(inner, ast.Call) and known.AWAITABLE.fullmatch(last_name(inner.func)) else []


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for the exception of a poll that nothing came for."""
    caught = handler.type
    types = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return caught is None or any(known.TIMED_OUT.fullmatch(last_name(one)) for one in types if one is not None)


def _suppresses(item: ast.withitem) -> bool:
    called = item.context_expr
    if not isinstance(called, ast.Call) or last_name(called.func) != "suppress":
        return False
    return any(known.TIMED_OUT.fullmatch(last_name(one)) for one in called.args)


def _may_leave(node: ast.stmt) -> bool:
    return any(isinstance(one, LEAVES) for one in ast.walk(node))


def _is_addition(call: ast.Call) -> bool:
    """Whether it changes nothing if what it adds is empty: ``done.extend(ready)``."""
    is_on_name = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    return is_on_name and last_name(call.func) in ("extend", "update") and not call.keywords
