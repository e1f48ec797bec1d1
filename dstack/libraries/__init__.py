"""One room for each library. Its package has its places to wait and its actors as data; it is below all else.

A room may have further modules, the same in each: ``reading`` reads on a node what its calls need, and travels there;
``waits`` has dependencies that only its waits have.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER = r"(?!)"
"""A pattern that matches nothing."""


@dataclass(frozen=True, slots=True)
class Recogniser:
    """Patterns that recognise actors of a library, and their names for its user.

    ``name``, and ``which`` to distinguish actors of that name, are formatted with the groups of the patterns and the
    actor's short ``id``. ``work`` is the pattern of the methods that execute the user's requests, with words for them.
    An actor that ``is_machinery`` runs no user code; neither do the calls in ``upkeep`` of other actors. One that
    ``only_directs`` acts for the user's code, and waits for other actors that run it. The name of the actor must match
    as well, because a class of the user may have the same name. ``id`` distinguishes a part that other code of dstack
    refers to. The library ``calls_only_for_state`` an actor whose thread executes its work. Of several actors with one
    name, each is a ``unit``. ``group`` is what the placement groups are for that it creates.
    """

    class_name: str
    name: str
    which: str = ""
    actor_name: str = r".*"
    work: tuple[str, str] = (NEVER, "")
    upkeep: str = NEVER
    is_machinery: bool = False
    only_directs: bool = False
    id: str = ""
    calls_only_for_state: bool = False
    unit: str = ""
    group: str = ""
