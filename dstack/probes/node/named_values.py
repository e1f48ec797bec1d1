"""What a process has under known names: labels, variables of its environment, locals, an actor's concurrency groups.

Seen on CPython 3.10 to 3.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import Modules, PythonProcess
from dstack.probes.node.redaction import masked_local
from dstack.probes.node.thread_stacks import AnyThread, function_of, is_in

MODULE, TABLE = "dstack.labels", "LABELS"
MAX_LABELS, MAX_NAME, MAX_VALUE = 32, 64, 128


def program_labels(process: PythonProcess) -> dict[str, str]:
    """The first labels that the program has given its process by ``dstack.label``, as text.

    Raises :class:`UnreadableMemory`.
    """
    objects = process.objects
    table = process.modules.lookup(MODULE, TABLE)
    found: dict[str, str] = {}
    for name, value in objects.entries(table)[:MAX_LABELS] if table else ():
        with contextlib.suppress(UnreadableMemory):
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


NAMES = {name.encode(): name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
"""What launchers of distributed runs set: Ray Train, torchrun, verl and Ray's own collective groups."""
MAX_VARIABLES = 2_000
MAX_VARIABLE = 256


def launch_variables(process: PythonProcess) -> Mapping[str, str]:
    """The variables of :data:`NAMES` in ``os.environ``, which keeps bytes by bytes; seen on CPython 3.10 to 3.15.

    Raises :class:`UnreadableMemory`.
    """
    objects = process.objects
    environ = process.modules.lookup("os", "environ")
    entries = objects.entries(objects.attribute(environ, "_data")) if environ else []
    if len(entries) > MAX_VARIABLES:
        raise UnreadableMemory(f"{len(entries)} environment variables")
    lengths = set(map(len, NAMES))
    found = {}
    for key, value in entries:
        with contextlib.suppress(UnreadableMemory):
            if objects.size(key, "bytes") in lengths and (name := NAMES.get(objects.data(key))):
                found[name] = objects.data(value, MAX_VARIABLE).decode("utf-8", "replace")
    return found


def number_of(variables: Mapping[str, str], name: str) -> int | None:
    """The value of a variable that is a number from 0 on."""
    value = variables.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None


GET_ACTOR = "get_actor"
MAX_TEXTS, MAX_TEXT = 16, 60


def texts_at_get_actor(objects: Objects, frames: Iterable[MemoryFrame]) -> dict[str, str]:
    """The short texts in the locals of the innermost of these frames whose function uses ``get_actor``.

    What cannot be read, or may be a secret, is left out.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(UnreadableMemory):
        for frame in [one for one in frames if GET_ACTOR in one.used_names][:1]:
            for name in frame.names[:MAX_TEXTS]:
                with contextlib.suppress(UnreadableMemory):
                    text = text_in(objects, frame, name, MAX_TEXT + 1)
                    if 0 < len(text) <= MAX_TEXT and masked_local(name, text) == text:
                        found[name] = text
    return found


EXECUTOR = "actor_method_executor"
"""The function that calls an actor's method."""
GROUP = "__ray_concurrency_group__"


def runs_methods(threads: Iterable[AnyThread]) -> bool:
    """Whether one of the threads is in a method of an actor."""
    return any(function_of(frame) == EXECUTOR for thread in threads for frame in thread.frames)


def concurrency_groups(process: PythonProcess) -> dict[str, str] | None:
    """The groups by method, as declared with ``@ray.method(concurrency_group=...)``, of a worker's actor; None without.

    Ray sets the group's name as an attribute of the function (2.46 and 2.60). They are read once for an actor and its
    class. Raises :class:`UnreadableMemory`.
    """
    objects = process.objects
    instance = actor_instance(process.modules, objects)
    if instance is None:
        return None
    key = instance, *objects.class_version(instance)
    if key not in process.known.groups:
        methods = objects.class_attributes(instance).items()
        groups = {name: objects.find_attribute(one, GROUP) for name, one in methods if objects.is_a(one, "function")}
        process.known.groups[key] = {name: objects.text(group) for name, group in groups.items() if group}
    return process.known.groups[key]


def actor_instance(modules: Modules, objects: Objects) -> int | None:
    """The address of a worker's actor; None where it has none.

    Ray's worker keeps its single instance, also while it is idle. Raises :class:`UnreadableMemory`.
    """
    worker = modules.lookup("ray._private.worker", "global_worker")
    actors = objects.find_attribute(worker, "actors") if worker else 0
    instances = objects.entries(actors) if actors else []
    return instances[0][1] if len(instances) == 1 else None


def local_in(frame: MemoryFrame, name: str) -> int:
    """The address of the object in a local. Raises :class:`UnreadableMemory` where it has none."""
    address = frame.local(name)
    if not address:
        raise UnreadableMemory(f"there is no local variable {name}")
    return address


def number_in(objects: Objects, frame: MemoryFrame, name: str) -> int | None:
    """The number in a local, None where it has none."""
    address = frame.local(name)
    return int(objects.number(address) or 0) if objects.is_a(address, "int") else None


def text_in(objects: Objects, frame: MemoryFrame, name: str, longest: int) -> str:
    """The text of a local, empty where it has none."""
    address = frame.local(name)
    return objects.text(address, longest) if objects.is_a(address, "str") else ""


def frame_in(frames: Sequence[MemoryFrame], file: str, function: str) -> MemoryFrame | None:
    """The innermost frame in this function."""
    return next((frame for frame in frames if is_in(frame, file, function)), None)
