"""The labels that a program has given its process by ``dstack.label``. Seen on CPython 3.10 to 3.14."""

from __future__ import annotations

import contextlib

from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.process import PythonProcess

MODULE, TABLE = "dstack.labels", "LABELS"
MAX_LABELS, MAX_NAME, MAX_VALUE = 32, 64, 128


def program_labels(process: PythonProcess) -> dict[str, str]:
    """The first labels by name, as text. Raises :class:`Unreadable`."""
    objects = process.objects
    table = process.modules.lookup(MODULE, TABLE)
    found: dict[str, str] = {}
    for name, value in objects.entries(table)[:MAX_LABELS] if table else ():
        with contextlib.suppress(Unreadable):
            text = _text(objects, value)
            if text is not None:
                found[objects.text(name, MAX_NAME)] = text
    return found


def _text(objects: Objects, value: int) -> str | None:
    """A value as ``str`` gives it; None for what is neither a text nor a number."""
    match objects.type_name(value):
        case "str":
            return objects.text(value, MAX_VALUE)
        case "bool":
            return str(objects.truth(value))
        case "int" | "float":
            return str(objects.number(value))
    return None
