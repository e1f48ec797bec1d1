"""The outlines of a job's functions: what they call, wait for and lock, in the order of their source.

An outline is what the source says, not what has happened. The analysis joins it with observed calls.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dstack.observed.calls import Natural
from dstack.observed.frozen_dataclass import frozen_dataclass

Path = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=1_000)]
StepKind = Literal["call", "wait", "acquire", "release"]


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a function, in the order of its source; steps of helpers that it calls are among them.

    A ``call`` submits the function or method ``name`` to Ray, or makes an actor of the class ``name``; it is empty if
    that is not known. The values of the calls ``takes`` are its arguments. It ``escapes`` if its ref also goes where
    the outline does not follow it. A ``wait`` is for the calls ``of``, by their positions among the steps, of which
    those of the pass of a loop before may come later; there are none if the refs are not known. With ``awaits`` it
    frees the event loop meanwhile. An ``acquire`` and its ``release`` are of the lock ``name``: ``self.lock``, or
    ``Class.lock`` of another object, or a name of the module; ``count`` can hold it at a time. What ``is_passed``, one
    function acquires and another one releases, and there are ``count`` at the begin: items of a queue, the ``room`` in
    it, a semaphore, an event. ``loops`` are the lines of the loops around a step, outermost first. A step that
    ``is_optional`` is in a branch, or after one that may have returned, or runs beside others, or it waits for one of
    its calls and it is not known for which. A step that ``is_timed`` has a timeout, or only asks whether there is a
    value, or continues with some of its values; in the last case alone it ``is_any``.
    """

    kind: StepKind
    file: Path
    line: Natural
    source: Annotated[str, Meta(max_length=1_000)] = ""
    name: Name = ""
    of: tuple[Natural, ...] = ()
    takes: tuple[Natural, ...] = ()
    escapes: bool = False
    awaits: bool = False
    is_timed: bool = False
    is_any: bool = False
    is_optional: bool = False
    count: Natural = 1
    is_passed: bool = False
    loops: tuple[Natural, ...] = ()


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOutline:
    """The steps of a function or method; ``name`` is ``function``, ``Class.method``, or empty for a program's own code.

    The own code of a program is what its driver runs: the code of its script, or of its test. ``group`` is the
    concurrency group of a method, empty for the default one.
    """

    name: Name
    file: Path
    line: Natural
    is_async: bool = False
    group: Name = ""
    steps: tuple[Step, ...] = ()


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ClassOutline:
    """How many calls an actor of a class runs at a time, as its source says: ``slots``, None if that is not certain.

    ``is_async`` if a method is ``async def``: then its calls share one event loop. ``groups`` are its concurrency
    groups with their slots; each has an event loop of its own. With ``has_groups`` these are not certain.
    """

    name: Name
    file: Path
    line: Natural
    is_async: bool = False
    slots: Natural | None = None
    groups: tuple[tuple[Name, Natural], ...] = ()
    has_groups: bool = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutline:
    """The source of one job as far as it was read; functions of one name that differ are left out, as are classes.

    ``why_partial`` says in a sentence what could not be read, and is empty if all was.
    """

    job_id: str
    functions: tuple[FunctionOutline, ...] = ()
    classes: tuple[ClassOutline, ...] = ()
    files: tuple[Path, ...] = ()
    why_partial: str = ""
