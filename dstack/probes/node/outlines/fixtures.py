"""The steps of a test of pytest, with those of the fixtures that it uses before it; up to where they yield."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence

from dstack.observed.outlines import Step
from dstack.probes.node.outlines.definitions import Constant, External, FunctionInfo, Instance, Program, Value
from dstack.probes.node.outlines.steps import Running, Yielded
from dstack.probes.node.outlines.values import joined
from dstack.probes.node.outlines.walk import Walk

FIXTURES = (External("pytest.fixture"), External("pytest_asyncio.fixture"))
MAX_FIXTURES = 32


class TestWalk(Walk):
    """The walk of a test function; each fixture is walked once, before what uses it."""

    __test__ = False  # it is no test itself

    def __init__(self, program: Program, info: FunctionInfo) -> None:
        owner = info.owner
        super().__init__(program, Instance(owner, is_shared=True) if owner else None)
        self._info = info
        self._values: dict[str, Value] = {}

    def run_test(self) -> None:
        """Walk the test after its fixtures. Raises TooManySteps and RecursionError."""
        for fixture in self._fixtures():
            if _keyword(fixture, "autouse") == Constant(True):
                self._fixture(_name_of(fixture))
        self._run_function(self._info)

    def _fixtures(self) -> Iterator[FunctionInfo]:
        """The fixtures in reach of the test: the nearest ones first."""
        file = self._info.module.path
        near = [one for one in self.program.functions if one.owner in (None, self._info.owner) and _is_fixture(one)]
        of_file = [one for one in near if one.module.path == file]
        yield from sorted(of_file, key=lambda one: one.owner is None)
        folders = sorted({one.module.path for one in near if _is_above(one.module.path, file)}, key=len, reverse=True)
        for path in folders:
            yield from (one for one in near if one.module.path == path)

    def _fixture(self, name: str) -> Value:
        if name not in self._values:
            self._values[name] = None  # a fixture that takes one of its own name from farther away
            found = next((one for one in self._fixtures() if _name_of(one) == name), None)
            if found is not None and len(self._values) <= MAX_FIXTURES:
                self._values[name] = self._run_function(found)
        return self._values[name]

    def _run_function(self, info: FunctionInfo) -> Value:
        running = Running(info.scope, info.captured, info, path=(info.node,), stops_at_yield=info is not self._info)
        for name in info.parameters:
            running.names[name] = self._fixture(name)
        if self.shared and info.is_bound and info.owner and info.parameters:
            running.names[info.parameters[0]] = self.shared
        self.steps.running.append(running)
        try:
            self.run_body(info.body)
        except Yielded:
            return next(iter(running.yielded.elements), None)
        finally:
            self.steps.running.pop()
        return joined(running.returned, len(self.steps.drafts))


def steps_of_test(program: Program, info: FunctionInfo) -> tuple[Step, ...]:
    """The steps of a test. Raises TooManySteps and RecursionError."""
    walk = TestWalk(program, info)
    walk.run_test()
    return walk.steps.finished()


def _decorators(info: FunctionInfo) -> Sequence[ast.expr]:
    return [] if isinstance(info.node, ast.Lambda) else info.node.decorator_list


def _is_fixture(info: FunctionInfo) -> bool:
    assert info.scope.parent is not None
    evaluate, scope = info.scope.program.evaluate, info.scope.parent
    called = (one.func if isinstance(one, ast.Call) else one for one in _decorators(info))
    return any(evaluate(one, scope) in FIXTURES for one in called)


def _keyword(info: FunctionInfo, name: str) -> Value:
    words = (word for one in _decorators(info) if isinstance(one, ast.Call) for word in one.keywords)
    found = next((word.value for word in words if word.arg == name), None)
    return Constant(found.value) if isinstance(found, ast.Constant) else None


def _name_of(info: FunctionInfo) -> str:
    stated = _keyword(info, "name")
    return stated.value if isinstance(stated, Constant) and isinstance(stated.value, str) else info.name


def _is_above(path: str, file: str) -> bool:
    """Whether it is a ``conftest.py`` whose fixtures a file has."""
    folder = os.path.dirname(path)
    return os.path.basename(path) == "conftest.py" and file.startswith(f"{folder}/")
