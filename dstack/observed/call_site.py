"""A call site: a place in code where threads and coroutines wait, with what is known about such a wait.

Sites travel to the nodes, which recognise them in stacks, and back in snapshots by their ids. Code compares ids and
fields, never names: those are words for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dstack.observed.calls import CallKind

At = Literal["leaf", "caller", "leaf or caller", "channel", "coroutine"]
"""Where in a stack a place counts: as the innermost frame, where it proves a wait; as a caller, where it only names
one; as the caller of ``ray.get`` on a channel; or anywhere in the await chain of a coroutine."""
Timeout = Literal["none", "local", "unknown"]
"""How the timeout of a wait is known. ``none``: no frame has one, since there is none, or only the kernel shows that of
a call in C. ``local``: a variable of the site has it. ``unknown``: neither shows it, as that of a socket."""

ALL_PYTHONS = "Python 3.10 to 3.15"
BOTH_RAYS, NEW_RAY = "Ray 2.46 and 2.60", "Ray 2.60"


@dataclass(frozen=True, slots=True)
class Place:
    """A function by the end of its file's path, and where in a stack it counts.

    ``seen`` has the versions on which it was verified. ``having`` is a local that distinguishes it from namesakes.
    ``every_s`` is how long a function sleeps that waits by sleeping, again and again, until its ``self`` has changed.
    """

    file: str
    function: str
    at: At
    seen: str
    having: str | None = None
    every_s: float | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """A call site by its id, with its name in the user's words.

    ``kind`` is that of its wait: a wait for refs, threads, a lock, ..., or ``other``. ``ended_by`` names what ends it,
    None if no words fit better than its name. Threads at a site that ``is_idle`` wait for nothing but work: they do not
    count as waiting. An idle service ``may_be_idle`` in a wait until input from outside its process ends it.
    ``is_meeting``: similar processes wait there for each other, whatever object each of them calls. ``polls``: the
    library sleeps there repeatedly until another process has joined. ``operation`` is the name that the ``library`` of
    a process group gives to a call on it. ``polls_actor`` is the id of the part of a library that the call polls,
    unseen by Ray's task events. ``is_of_children``: child processes end the wait.
    """

    id: str
    name: str
    places: tuple[Place, ...] = ()
    kind: CallKind = "other"
    timeout: Timeout = "local"
    ended_by: str | None = None
    is_idle: bool = False
    may_be_idle: bool = True
    is_meeting: bool = False
    polls: bool = False
    operation: str = ""
    library: str = ""
    polls_actor: str | None = None
    is_of_children: bool = False


def leaf(file: str, function: str, seen: str = ALL_PYTHONS, having: str | None = None) -> Place:
    """A function that waits when it is the innermost frame."""
    return Place(file, function, "leaf", seen, having)


def caller(file: str, function: str, seen: str = ALL_PYTHONS, having: str | None = None) -> Place:
    """A function that names a wait in a frame inside of it."""
    return Place(file, function, "caller", seen, having)


def site(
    id: str,
    *places: Place,
    name: str | None = None,
    kind: CallKind = "other",
    timeout: Timeout = "local",
    ended_by: str | None = None,
    may_be_idle: bool = True,
    is_of_children: bool = False,
) -> Site:
    """A site that users know by its id, if no other ``name`` is given."""
    return Site(
        id,
        id if name is None else name,
        places,
        kind=kind,
        timeout=timeout,
        ended_by=ended_by,
        may_be_idle=may_be_idle,
        is_of_children=is_of_children,
    )


def operations(file: str, functions: str, library: str, seen: str, *, at: At, polls: bool = False) -> tuple[Site, ...]:
    """A site for each operation of a library on process groups, by its functions in a file.

    A function with another name than its operation is written as ``function=operation``.
    """
    places: dict[str, list[Place]] = {}
    for text in functions.split():
        function, _, operation = text.partition("=")
        places.setdefault(operation or function, []).append(Place(file, function, at, seen))
    return tuple(
        Site(
            f"{library}.{name}",
            f"{name} of {library}",
            tuple(of_operation),
            polls=polls,
            operation=name,
            library=library,
        )
        for name, of_operation in places.items()
    )
