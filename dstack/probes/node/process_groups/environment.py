"""Environment variables as Python sees them, which a program may have set after its start."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import PythonProcess

NAMES = {name.encode(): name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
"""What launchers of distributed runs set: Ray Train, torchrun, verl and Ray's own collective groups."""
MAX_VARIABLES = 2_000
MAX_VALUE = 256


def launch_variables(process: PythonProcess) -> Mapping[str, str]:
    """The variables of :data:`NAMES` in ``os.environ``, which keeps bytes by bytes; seen on CPython 3.10 to 3.14.

    Raises :class:`Unreadable`.
    """
    objects = process.objects
    environ = process.modules.lookup("os", "environ")
    entries = objects.entries(objects.attribute(environ, "_data")) if environ else []
    if len(entries) > MAX_VARIABLES:
        raise Unreadable(f"{len(entries)} environment variables")
    lengths = set(map(len, NAMES))
    found = {}
    for key, value in entries:
        with contextlib.suppress(Unreadable):
            if objects.size(key, "bytes") in lengths and (name := NAMES.get(objects.data(key))):
                found[name] = objects.data(value, MAX_VALUE).decode("utf-8", "replace")
    return found


def number_of(variables: Mapping[str, str], name: str) -> int | None:
    """The value of a variable that is a number from 0 on."""
    value = variables.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None
