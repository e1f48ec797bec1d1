"""What dstack needs of Ray's gRPC services and their messages, checked against the descriptors of the installed Ray.

A piece is a method, or some fields or values of one message or enum, with what it feeds. A reply that lacks a vital
piece is of no use. One that lacks others is filled in: their fields have the defaults of protobuf, and an enum has no
value. A field of another type than expected counts as absent. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dstack.observed.node import Cause, Failure, Stage

PACKAGE = "ray.rpc."
PieceKind = Literal["field", "method", "value"]
Release = tuple[int, int]
OLDEST: Release = (2, 46)
"""The oldest Ray that dstack supports."""
NEW: Release = (2, 60)
"""What was seen on Ray 2.60 and not on 2.46 counts as expected from here on."""
DEFAULTS: dict[str, Any] = {
    "text": "",
    "bytes": b"",
    "int": 0,
    "float": 0.0,
    "bool": False,
    "enum": None,
    "map": {},
    "list": (),
}
"""The types of fields in pieces, with their defaults; any other type is the name of a message."""
TYPES = {**dict.fromkeys((1, 2, 3, 4), "int"), 5: "float", 6: "float", 7: "bool", 8: "enum", 9: "text"}
"""The types by protobuf's ``cpp_type``, except of messages; ``type`` distinguishes bytes from texts."""
BYTES = 12
REMEDY = "Use a dstack that knows this Ray: pip install --upgrade ray-dstack."


@dataclass(frozen=True)
class Piece:
    """Methods of a service, fields of a message as ``name:type``, or values of an enum, by name.

    ``NEW|OLD:type`` is a field with two names. ``feeds`` is what dstack knows by the piece, in the words of a report.
    Without a ``vital`` one, replies are of no use. Ray before ``since`` does not have it. An enum may have the
    ``others``, which dstack knows, too. ``stage`` is that of the failure without it.
    """

    feeds: str
    owner: str
    names: str
    kind: PieceKind = "field"
    is_vital: bool = False
    since: Release = OLDEST
    others: str = ""
    stage: Stage = "Ray"

    @property
    def what(self) -> str:
        """Its owner and its names."""
        return f"{self.owner} {', '.join(text.partition(':')[0] for text in self.names.split())}"


@dataclass(frozen=True)
class LostPiece:
    """Something of Ray that is not as dstack knows it: ``reason`` says what, and what dstack does not know without it.

    One that is vital may hide a wait.
    """

    reason: str
    is_vital: bool = False
    stage: Stage = "Ray"

    @property
    def cause(self) -> Cause:
        """The cause of the failure that it is."""
        return "unreadable" if self.is_vital else "missing"

    def failure(self) -> Failure:
        """The loss as a failure to observe the cluster."""
        return Failure(stage=self.stage, reason=self.reason, cause=self.cause, remedy=REMEDY)


class Unusable(Exception):
    """A reply lacks a vital piece; the text says which."""


class Protocol:
    """The pieces in the descriptor ``pool`` of a Ray of this ``release``; ``lost`` are those not as expected."""

    def __init__(self, pieces: Iterable[Piece], pool: Any, release: Release) -> None:
        self.pool = pool
        self._absent: set[tuple[str, str]] = set()
        self._types: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._vital: dict[str, str] = {}
        self._parts: defaultdict[str, set[str]] = defaultdict(set)
        self._lacks: dict[str, str | None] = {}
        self.lost = [lost for piece in pieces if piece.since <= release for lost in self._check(piece)]

    def checked(self, reply: Any) -> Any:
        """The reply, filled in where fields are absent. Raises :class:`Unusable` where a vital piece is."""
        if not self._absent:
            return reply
        name = _name(reply.DESCRIPTOR)
        if name not in self._lacks:
            vital = (self._vital[part] for part in sorted(self._parts_of(name)) if part in self._vital)
            self._lacks[name] = next(vital, None)
        if (lacks := self._lacks[name]) is not None:
            raise Unusable(f"its reply has another form than dstack knows: this Ray has no {lacks}")
        return Filled(self, reply, name)

    def has(self, message: str, field: str) -> bool:
        """Whether a message of this Ray has a field as dstack knows it, or a service a method."""
        return (message, field) not in self._absent

    def default(self, message: str, field: str) -> Any:
        """The value of an absent field, or of one of an absent message. Raises ``AttributeError`` for any other."""
        type_name = self._types[message].get(field)
        if type_name is None:
            raise AttributeError(f"{message} has no field {field}")
        return DEFAULTS[type_name] if type_name in DEFAULTS else Filled(self, None, type_name)

    def _check(self, piece: Piece) -> Iterator[LostPiece]:
        find = {"field": self._fields, "method": self._methods, "value": self._values}[piece.kind]
        present = find(piece.owner)
        for text in piece.names.split():
            names, _, type_name = text.partition(":")
            self._types[piece.owner].update(dict.fromkeys(names.split("|"), type_name))
            self._note_parts(piece.owner, type_name, present.get(f"{names}.of"))
            if any(present.get(name) == type_name for name in names.split("|")):
                continue
            what = f"{piece.kind} {names.partition('|')[0]} of {piece.owner}"
            if names in present:
                what += f" with the type {type_name}"
            self._absent.update((piece.owner, name) for name in names.split("|"))
            if piece.is_vital:
                self._vital.setdefault(piece.owner, what)
            reason = f"this Ray has no {what}, so dstack does not know {piece.feeds}"
            yield LostPiece(reason, piece.is_vital, piece.stage)
        if piece.kind == "value" and piece.is_vital:
            for name in sorted(present.keys() - {*piece.names.split(), *piece.others.split()}):
                yield LostPiece(f"this Ray has the {piece.owner} {name}, which dstack does not know")

    def _note_parts(self, owner: str, *parts: str | None) -> None:
        """Notes the messages and enums in fields of a message, by those that dstack uses."""
        self._parts[owner].update(part for part in parts if part and part not in DEFAULTS)

    def _parts_of(self, name: str) -> set[str]:
        """A message with all that is in it."""
        found, todo = {name}, [name]
        while todo:
            new = self._parts.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    def _fields(self, message: str) -> dict[str, str]:
        """The fields by name with their types; ``NAME.of`` is the message or enum in a list, a map or an enum."""
        found: dict[str, str] = {}
        for field in self._members(self.pool.FindMessageTypeByName, message, "fields"):
            found[field.name], part = _type_of(field)
            if part:
                found[f"{field.name}.of"] = part
        return found

    def _methods(self, service: str) -> dict[str, str]:
        return {method.name: "" for method in self._members(self.pool.FindServiceByName, service, "methods")}

    def _values(self, enum: str) -> dict[str, str]:
        return {value.name: "" for value in self._members(self.pool.FindEnumTypeByName, enum, "values")}

    def _members(self, find: Callable[[str], Any], name: str, members: str) -> Iterable[Any]:
        try:
            return tuple(getattr(find(f"{PACKAGE}{name}"), members))
        except KeyError:
            return ()


class Filled:
    """A message, None for an absent one, whose absent fields have their defaults; it is read as the message is."""

    __slots__ = ("_message", "_name", "_protocol")

    def __init__(self, protocol: Protocol, message: Any, name: str) -> None:
        self._protocol = protocol
        self._message = message
        self._name = name

    def __getattr__(self, field: str) -> Any:
        if self._message is None and field == "WhichOneof":
            return lambda _: None
        if self._message is None or not self._protocol.has(self._name, field):
            return self._protocol.default(self._name, field)
        return self._of(getattr(self._message, field))

    def _of(self, value: Any) -> Any:
        if isinstance(value, MutableSequence):
            return [self._of(item) for item in value]
        if isinstance(value, MutableMapping):
            return {key: self._of(item) for key, item in value.items()}
        if hasattr(value, "SerializeToString"):
            return Filled(self._protocol, value, _name(value.DESCRIPTOR))
        return value


def _name(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix(PACKAGE)


def is_repeated(field: Any) -> bool:
    """Whether a field is a list or a map; protobuf has replaced ``label``, which is in releases before 6."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _type_of(field: Any) -> tuple[str, str | None]:
    """The type of a field, and the message or enum in it, if that is not the type."""
    message, enum = field.message_type, field.enum_type
    part = _name(message or enum) if message or enum else None
    if is_repeated(field):
        if message is None or not message.GetOptions().map_entry:
            return "list", part
        value = message.fields_by_name["value"].message_type
        return "map", _name(value) if value else None
    if message:
        return _name(message), None
    return ("bytes", None) if field.type == BYTES else (TYPES[field.cpp_type], part)


def name_of(enum: Any, number: int | None) -> str:
    """The name of a value of an enum; its number where this Ray's enum has no such value, empty where it is absent."""
    if number is None:
        return ""
    return str(enum.Name(number)) if number in enum.values() else str(number)


VERSION = re.compile(r'^version = "([^"]+)"', re.MULTILINE)


def version_of(folder: Path) -> str | None:
    """The version of the Ray in a folder; None where it cannot be read."""
    match = VERSION.search(text_of_file(folder / "_version.py") or "")
    return match[1] if match else None


def release_of_folder(folder: Path) -> Release:
    """The minor release of the Ray in a folder; (0, 0) where that cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", version_of(folder) or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def folder_of_module(module: Any) -> Path:
    """The folder of the Ray that a generated module is of."""
    return Path(module.__file__).parents[2]


def text_of_file(path: Path) -> str | None:
    """The text of a file; None where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None
