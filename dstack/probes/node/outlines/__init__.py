"""Outlines of the functions of a program: what their source calls, waits for and locks.

The files are parsed, never imported or run. A value is followed only as far as it is certain: through names,
containers, attributes within one function, arguments, and what helpers return. A ref that goes elsewhere escapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import psutil

from dstack.observed.outlines import ClassOutline, FunctionOutline, ProgramOutline, Step
from dstack.probes.node.outlines.definitions import (
    ActorOptions,
    ClassInfo,
    FunctionInfo,
    Instance,
    Program,
    as_maker,
    group_of,
)
from dstack.probes.node.outlines.fixtures import steps_of_test
from dstack.probes.node.outlines.program_files import (
    MAX_S,
    ProgramFiles,
    Script,
    Unread,
    conftests_of,
    folder_and_name,
    is_users,
    script_of,
)
from dstack.probes.node.outlines.source_modules import SourceModule
from dstack.probes.node.outlines.steps import TooManySteps
from dstack.probes.node.outlines.walk import evaluate, steps_of, steps_of_script
from dstack.probes.node.stacks.source_files import Version, find_source, version_of

_T = TypeVar("_T")
TOO_LONG = "the outlines of the program's functions took too long"
MAX_NODE_S = 2.0
"""The CPU time for the drivers of a node."""
TOO_LARGE = "a function has too many steps"


def outlines_of_driver(pid: int, job_id: str, others: Iterable[str] = ()) -> ProgramOutline:
    """The outline of what a driver runs: its script with what that imports, and ``others``, files of its stacks."""
    try:
        script = script_of(pid)
    except Unread as error:
        found = outline_of_files(others, job_id=job_id)
        return replace(found, why_partial=". ".join(filter(None, (str(error), found.why_partial))))
    files = ProgramFiles(script.folders)
    _read(files, others, script)
    return _Outlines(files).of_script(files.modules.get(script.path), job_id)


class DriverOutlines:
    """Outlines of drivers on this node; each is kept for the next snapshot, unless its files change."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], _Known] = {}

    def begin_snapshot(self) -> None:
        """Forget the programs that have ended."""
        self._known = {key: known for key, known in self._known.items() if psutil.pid_exists(key[0])}

    def of_drivers(self, drivers: Iterable[tuple[int, str, Iterable[str]]]) -> Iterator[ProgramOutline]:
        """The outlines of drivers: their pids, jobs and files of their stacks. If it takes too long, some are empty."""
        until = time.thread_time() + MAX_NODE_S
        for pid, job_id, others in drivers:
            if time.thread_time() > until:
                yield ProgramOutline(job_id=job_id, why_partial=TOO_LONG)
            else:
                yield self._of_driver(pid, job_id, frozenset(others))

    def _of_driver(self, pid: int, job_id: str, others: frozenset[str]) -> ProgramOutline:
        known = self._known.get((pid, job_id))
        if known is None or not known.holds_for(others):
            outline = outlines_of_driver(pid, job_id, sorted(others))
            versions = {path: version_of(path) for path in outline.files}
            known = self._known[pid, job_id] = _Known(outline, versions, others)
        return known.outline


@dataclass(frozen=True)
class _Known:
    """An outline, the versions of its files, and the files of stacks that were among them."""

    outline: ProgramOutline
    versions: Mapping[str, Version]
    others: frozenset[str]

    def holds_for(self, others: frozenset[str]) -> bool:
        """Whether no file has changed, and no other one is to be read."""
        return others <= self.others and all(version_of(path) == known for path, known in self.versions.items())


def outline_of_files(paths: Iterable[str], own: tuple[str, str] | None = None, *, job_id: str = "") -> ProgramOutline:
    """The outline of these files and what they import from their own folders.

    ``own`` are the file and the name of the function, as of a test, whose steps are the program's own code.
    """
    files = ProgramFiles([])
    _read(files, paths)
    outlines = _Outlines(files)
    return outlines.of_test(*own, job_id) if own else outlines.of_script(None, job_id)


class TestOutlines:
    """Outlines of tests, for the process that runs them; the files of the last test are kept for the next one.

    ``folders`` are those in which modules are found besides that of the test's file.
    """

    __test__ = False  # it is no test itself

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._folders = folders
        self._last: tuple[str, _Outlines] | None = None

    def of_test(self, path: str, name: str, job_id: str) -> ProgramOutline:
        """The outline of a test, by its file and its name, as ``TestCashier.test_order``: its steps are the own code.

        The fixtures of ``conftest.py`` in the folders above are among them.
        """
        if self._last is None or self._last[0] != path:
            files = ProgramFiles(self._folders)
            _read(files, [path, *conftests_of(path)])
            self._last = path, _Outlines(files)
        return self._last[1].of_test(path, name, job_id)


def _read(files: ProgramFiles, paths: Iterable[str], script: Script | None = None) -> None:
    """Read files, each as a module of its own folder, and the script before."""
    found = {path: folder_and_name(path) for path in paths if find_source(path) and is_users(path)}
    files.folders = [*dict.fromkeys((*files.folders, *(folder for folder, _ in found.values())))]
    first = [(script.path, script.module)] if script else []
    files.read([*first, *((path, name) for path, (_, name) in found.items())], main=script.path if script else "")


@dataclass(frozen=True)
class _Candidate:
    """A function with the name of its tasks; ``owner`` is the class of the actor whose method it is."""

    name: str
    info: FunctionInfo
    owner: ClassInfo | None = None

    @property
    def defined(self) -> FunctionInfo | ClassInfo:
        """What is made remote."""
        return self.owner or self.info


class _Outlines:
    """The outlines of the files of one program."""

    def __init__(self, files: ProgramFiles) -> None:
        self._files = files
        self._problems = dict(files.problems)
        self._deadline = time.thread_time() + MAX_S
        self._walks: dict[_Candidate, FunctionOutline | None] | None = None
        self._program = Program(evaluate)
        for module in files.modules.values():
            self._guarded(partial(self._program.add, module), module)

    def of_script(self, script: SourceModule | None, job_id: str) -> ProgramOutline:
        """The outline with the steps of the script, if there is one, as the program's own code."""
        steps = self._guarded(lambda: steps_of_script(self._program, script), script) if script else None
        own = FunctionOutline(name="", file=script.path, line=1, steps=steps) if script and steps is not None else None
        return self._with_own(own, None, job_id)

    def of_test(self, path: str, name: str, job_id: str) -> ProgramOutline:
        """The outline with a test as the program's own code."""
        *outer, last = name.partition("[")[0].replace("::", ".").split(".")
        info = next((one for one in self._program.functions if _is_named(one, path, outer, last)), None)
        if info is None:
            found = self._with_own(None, None, job_id)
            return replace(found, why_partial=f"the test {name} was not found in {path}")
        self._functions(info)  # what a test makes counts before what all of them make
        for one in self._program.classes:
            one.created_last.clear()
        steps = self._guarded(lambda: steps_of_test(self._program, info), info.module)
        return self._with_own(_outline(info, "", steps) if steps is not None else None, info, job_id)

    def _with_own(self, own: FunctionOutline | None, test: FunctionInfo | None, job_id: str) -> ProgramOutline:
        functions = self._functions(test)
        return ProgramOutline(
            job_id=job_id,
            functions=tuple([own, *functions] if own else functions),
            classes=tuple(self._classes(test)),
            files=tuple(self._files.modules),
            why_partial="; ".join(self._problems),
        )

    def _functions(self, test: FunctionInfo | None) -> list[FunctionOutline]:
        """The functions and methods that tasks may run, by the names of these tasks."""
        if self._walks is None:
            found = {one: self._walked(one) for one in self._candidates(all_of_them=False)}
            found |= {one: self._walked(one) for one in self._candidates(all_of_them=True) if one not in found}
            self._walks = found
        by_name: dict[str, dict[int, list[FunctionOutline | None]]] = {}
        for one, outline in self._walks.items():
            by_name.setdefault(one.name, {}).setdefault(self._rank(one.defined, test), []).append(outline)
        return [*filter(None, (_agreed(ranks[max(ranks)]) for ranks in by_name.values()))]

    def _walked(self, one: _Candidate) -> FunctionOutline | None:
        """The outline of a function; None if it was not walked to its end."""
        if time.thread_time() > self._deadline:
            self._problems[TOO_LONG] = None
            self._program.has_unknown_slots = True
            return None
        shared = Instance(one.owner, is_shared=True) if one.owner and one.info.is_bound else None
        steps = self._guarded(lambda: steps_of(self._program, one.info, shared), one.info.module)
        return None if steps is None else _outline(one.info, one.name, steps)

    def _candidates(self, *, all_of_them: bool) -> Iterable[_Candidate]:
        """The functions of files that mention Ray, and ``all_of_them`` those that are remote."""
        program = self._program
        for info in program.functions:
            is_remote = info in program.remote or (info.owner is not None and self._is_remote(info))
            if (info.module.mentions_ray and info.owner is None) or (is_remote and (info.owner is None or all_of_them)):
                yield _Candidate(info.name, info)
        for owner in program.classes:
            may_be_actor = any(one.scope.module.mentions_ray for one in owner.mro)
            if may_be_actor or (all_of_them and owner.created):
                yield from (_Candidate(f"{owner.name}.{name}", one, owner) for name, one in owner.all_methods.items())

    def _classes(self, test: FunctionInfo | None) -> Iterable[ClassOutline]:
        """The classes of actors, as far as there is one of a name."""
        by_name: dict[str, dict[int, list[ClassOutline]]] = {}
        for info in self._program.classes:
            if any(one.scope.module.mentions_ray for one in info.mro) or info.created:
                by_name.setdefault(info.name, {}).setdefault(self._rank(info, test), []).append(
                    _class_outline(info, info.created_last if test and info.created_last else info.created)
                )
        chosen = (ranks[max(ranks)] for ranks in by_name.values())
        return [ones[0] for ones in chosen if len({replace(one, file="", line=0) for one in ones}) == 1]

    def _rank(self, defined: FunctionInfo | ClassInfo, test: FunctionInfo | None) -> int:
        """Of one name, definitions within the test come first, then those that are remote."""
        is_remote = self._is_remote(defined) if isinstance(defined, FunctionInfo) else _is_actor_class(defined)
        return 2 * bool(test and test.node in defined.holders) + is_remote

    def _is_remote(self, info: FunctionInfo) -> bool:
        return info in self._program.remote or any(map(as_maker, info.decorators))

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


def _outline(info: FunctionInfo, name: str, steps: tuple[Step, ...]) -> FunctionOutline:
    line = info.node.lineno
    return FunctionOutline(
        name=name, file=info.module.path, line=line, is_async=info.is_async, group=group_of(info) or "", steps=steps
    )


def _agreed(outlines: Sequence[FunctionOutline | None]) -> FunctionOutline | None:
    """The outline of functions of one name, if they do the same and all were walked."""
    alike = {(one.steps, one.is_async) if one else None for one in outlines}
    return outlines[0] if len(alike) == 1 else None


def _is_actor_class(info: ClassInfo) -> bool:
    return bool(info.decorator or info.created)


def _class_outline(info: ClassInfo, created: Collection[ActorOptions]) -> ClassOutline:
    return ClassOutline(
        name=info.name,
        file=info.scope.module.path,
        line=info.node.lineno,
        is_async=info.is_async,
        slots=info.slots(created),
        groups=info.groups(created) or (),
        has_groups=info.groups(created) is None,
    )
