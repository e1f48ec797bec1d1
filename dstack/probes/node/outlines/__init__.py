"""Outlines of the functions of a program: what their source calls, waits for and locks.

The files are parsed, never imported or run. A value is followed only as far as it is certain: through names,
containers, attributes within one function, arguments, and what helpers return. A ref that goes elsewhere escapes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dstack.observed.outlines import ClassOutline, FunctionOutline, ProgramOutline
from dstack.probes.node.outlines.definitions import ClassInfo, FunctionInfo, Instance, Program, as_maker
from dstack.probes.node.outlines.fixtures import steps_of_test
from dstack.probes.node.outlines.program_files import MAX_S, ProgramFiles, Unread, folder_and_name, is_users, script_of
from dstack.probes.node.outlines.source_modules import SourceModule
from dstack.probes.node.outlines.steps import TooManySteps
from dstack.probes.node.outlines.walk import evaluate, steps_of, steps_of_script

_T = TypeVar("_T")
MAX_FUNCTIONS = 5_000
"""The most functions of a program that are walked."""
TOO_LONG = "the outlines of the program's functions took too long"
TOO_LARGE = "a function has too many steps"


def outlines_of_driver(pid: int, job_id: str, others: Iterable[str] = ()) -> ProgramOutline:
    """The outline of what a driver runs: its script with what that imports, and ``others``, files of its stacks."""
    deadline = time.monotonic() + MAX_S
    try:
        script = script_of(pid)
    except Unread as error:
        found = outline_of_files(others, job_id=job_id, deadline=deadline)
        return replace(found, why_partial=". ".join(filter(None, (str(error), found.why_partial))))
    files = ProgramFiles(script.folders, deadline)
    files.read(script.path, script.module, is_main=True)
    _read_others(files, others)
    return _Outlines(files, job_id).of_script(files.modules.get(script.path))


def outline_of_files(
    paths: Iterable[str],
    own: tuple[str, str] | None = None,
    *,
    job_id: str = "",
    folders: Iterable[str] = (),
    deadline: float | None = None,
) -> ProgramOutline:
    """The outline of these files and what they import, from their own folders and the ``folders``.

    ``own`` is the file and the name, as ``TestCashier.test_order``, of the test whose steps are the program's own code.
    """
    files = ProgramFiles([*folders], time.monotonic() + MAX_S if deadline is None else deadline)
    _read_others(files, paths)
    found = _Outlines(files, job_id)
    return found.of_test(*own) if own else found.of_script(None)


def _read_others(files: ProgramFiles, paths: Iterable[str]) -> None:
    for path in dict.fromkeys(paths):
        if os.path.isabs(path) and is_users(path):
            folder, name = folder_and_name(path)
            files.folders = [*dict.fromkeys((*files.folders, folder))]
            files.read(path, name)


class _Outlines:
    """The outlines of the files of one program."""

    def __init__(self, files: ProgramFiles, job_id: str) -> None:
        self._files = files
        self._job_id = job_id
        self._problems = dict(files.problems)
        self._program = Program(evaluate)
        for module in files.modules.values():
            self._guarded(partial(self._program.add, module), module)

    def of_script(self, script: SourceModule | None) -> ProgramOutline:
        """The outline with the steps of the script, if there is one, as the program's own code."""
        functions = self._functions(())
        steps = self._guarded(lambda: steps_of_script(self._program, script), script) if script else None
        if script and steps is not None:
            functions.insert(0, FunctionOutline(name="", file=script.path, line=1, steps=steps))
        return self._finished(functions, ())

    def of_test(self, path: str, name: str) -> ProgramOutline:
        """The outline with a test as the program's own code."""
        *outer, last = name.partition("[")[0].replace("::", ".").split(".")
        info = next((one for one in self._program.functions if _is_named(one, path, outer, last)), None)
        if info is None:
            self._problems[f"the test {name} was not found in {path}"] = None
            return self._finished(self._functions(()), ())
        functions = self._functions((info.node,))
        steps = self._guarded(lambda: steps_of_test(self._program, info), info.module)
        if steps is not None:
            line = info.node.lineno
            functions.insert(0, FunctionOutline(name="", file=path, line=line, is_async=info.is_async, steps=steps))
        return self._finished(functions, (info.node,))

    def _finished(self, functions: Sequence[FunctionOutline], own: tuple[object, ...]) -> ProgramOutline:
        return ProgramOutline(
            job_id=self._job_id,
            functions=tuple(functions),
            classes=tuple(self._classes(own)),
            files=tuple(self._files.modules),
            why_partial="; ".join(self._problems),
        )

    def _functions(self, own: tuple[object, ...]) -> list[FunctionOutline]:
        """The functions and methods that tasks may run, by the names of these tasks."""
        found: dict[str, dict[int, list[FunctionOutline]]] = {}
        for number, (rank, name, info, shared) in enumerate(self._candidates(own)):
            if number >= MAX_FUNCTIONS or time.monotonic() > self._files.deadline:
                self._problems[TOO_LONG] = None
                break
            steps = self._guarded(partial(steps_of, self._program, info, shared), info.module)
            made = FunctionOutline(
                name=name, file=info.module.path, line=info.node.lineno, is_async=info.is_async, steps=steps or ()
            )
            of_rank = found.setdefault(name, {}).setdefault(rank, [])
            of_rank.append(made if steps is not None else replace(made, name=""))
        chosen = (ranks[max(ranks)] for ranks in found.values())
        return [ones[0] for ones in chosen if _agree(ones)]

    def _candidates(self, own: tuple[object, ...]) -> Iterable[tuple[int, str, FunctionInfo, Instance | None]]:
        """Functions with the names of their tasks; of one name, those of the highest rank count."""
        for info in self._program.functions:
            if info.owner is None or _is_remote(info, self._program):
                yield _rank(info.holders, own) + (_is_remote(info, self._program)), info.name, info, None
        for owner in self._program.classes:
            rank = _rank(owner.holders, own) + bool(owner.decorator or owner.created)
            for name, method in owner.all_methods.items():
                shared = Instance(owner, is_shared=True) if method.is_bound else None
                yield rank, f"{owner.name}.{name}", method, shared

    def _classes(self, own: tuple[object, ...]) -> Iterable[ClassOutline]:
        """The classes of actors, as far as there is one of a name."""
        found: dict[str, dict[int, list[ClassOutline]]] = {}
        for info in self._program.classes:
            rank = _rank(info.holders, own) + bool(info.decorator or info.created)
            found.setdefault(info.name, {}).setdefault(rank, []).append(_class_outline(info))
        chosen = (ranks[max(ranks)] for ranks in found.values())
        return [ones[0] for ones in chosen if len(ones) == 1 or _are_alike(ones)]

    def _guarded(self, walk: Callable[[], _T], module: SourceModule) -> _T | None:
        """What a walk returns, None if the source is too much for it."""
        try:
            return walk()
        except TooManySteps:
            self._problems[TOO_LARGE] = None
        except Exception as error:  # no source may end the sample of a node
            self._problems[f"{module.path} could not be followed: {type(error).__name__}"] = None
        return None


def _is_named(info: FunctionInfo, path: str, outer: Sequence[str], last: str) -> bool:
    owner = info.owner.name if info.owner else None
    return info.module.path == path and info.name == last and owner == (outer[-1] if outer else None)


def _rank(holders: Sequence[object], own: Sequence[object]) -> int:
    """Definitions within the program's own function come first, then those that are made remote."""
    return 2 if any(one in holders for one in own) else 0


def _is_remote(info: FunctionInfo, program: Program) -> bool:
    return info in program.remote or any(map(as_maker, info.decorators))


def _agree(outlines: Sequence[FunctionOutline]) -> bool:
    """Whether functions of one name do the same, and each was walked."""
    first = outlines[0]
    return bool(first.name) and all((one.steps, one.is_async) == (first.steps, first.is_async) for one in outlines)


def _class_outline(info: ClassInfo) -> ClassOutline:
    return ClassOutline(
        name=info.name,
        file=info.scope.module.path,
        line=info.node.lineno,
        is_async=info.is_async,
        slots=info.slots,
        has_groups=info.has_groups,
    )


def _are_alike(outlines: Sequence[ClassOutline]) -> bool:
    first = outlines[0]
    return all(
        (one.is_async, one.slots, one.has_groups) == (first.is_async, first.slots, first.has_groups) for one in outlines
    )
