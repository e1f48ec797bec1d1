"""Values of local variables as short texts, in py-spy's notation: other objects by type and address."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects

MAX_CHARACTERS = 128
MAX_DEPTH = 3
MORE = "..."


def shown_locals(objects: Objects, frame: MemoryFrame) -> dict[str, str]:
    """The locals of a frame that have a value, by name; those that cannot be read are left out."""
    shown: dict[str, str] = {}
    try:
        found = dict(zip(frame.names, frame.locals, strict=True))
    except UnreadableMemory:
        return {}
    for name, address in found.items():
        try:
            if value := objects.content(address):
                shown[name] = text_of(objects, value)
        except UnreadableMemory:
            continue
    return shown


def text_of(objects: Objects, address: int, depth: int = 0) -> str:
    """A value as text of about ``MAX_CHARACTERS``; only its type where it is too large, or cannot be read.

    Raises :class:`UnreadableMemory` where its type cannot be read.
    """
    kind = objects.type_name(address)
    try:
        content = _content(objects, address, kind, depth)
    except UnreadableMemory:
        content = None
    return f"<{kind} at {address:#x}>" if content is None else content


def _content(objects: Objects, address: int, kind: str, depth: int) -> str | None:
    """The text of a value of a type that is shown, else None."""
    match kind:
        case "NoneType":
            return "None"
        case "bool":
            return str(objects.truth(address))
        case "int" | "float":
            return repr(objects.number(address))
        case "str":
            text = objects.text(address, MAX_CHARACTERS + 1)
            return f'"{text[:MAX_CHARACTERS]}{MORE * (len(text) > MAX_CHARACTERS)}"'
    if depth < MAX_DEPTH:
        match kind:
            case "list":
                return f"[{_joined(_items(objects, address, depth))}]"
            case "tuple":
                return f"({_joined(_items(objects, address, depth))})"
            case "dict":
                return f"{{{_joined(_pairs(objects, address, depth))}}}"
    return None


def _items(objects: Objects, address: int, depth: int) -> Iterator[str]:
    return (text_of(objects, item, depth + 1) for item in objects.items(address, MAX_CHARACTERS))


def _pairs(objects: Objects, address: int, depth: int) -> Iterator[str]:
    for key, value in objects.entries(address):
        yield f"{text_of(objects, key, depth + 1)}: {text_of(objects, value, depth + 1)}"


def _joined(texts: Iterator[str]) -> str:
    """As many texts as fit, separated by commas."""
    found: list[str] = []
    length = 0
    for text in texts:
        if length > MAX_CHARACTERS:
            found.append(MORE)
            break
        found.append(text)
        length += len(text) + 2
    return ", ".join(found)
