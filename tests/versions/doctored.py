"""Copies of the installed Ray in which a piece is another one, as in a release that dstack has never seen.

    path = Doctored(version="2.61.0", protobufs={"GcsNodeInfo.death_info": "end_info"}).copy(folder)

Only what is changed is copied; all else is a link. A program with this path first in ``PYTHONPATH`` uses the copy.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, text_format

from dstack.probes.connection.cluster_ray import DESCRIPTORS
from dstack.probes.node.ray_messages import version_of

INSTALLED = Path(importlib.util.find_spec("ray").origin or "").parent  # type: ignore[union-attr]
GENERATED = "core/generated"
LIBRARY = "_raylet.so"
BINARIES = (LIBRARY, "core/src/ray/gcs/gcs_server", "core/src/ray/raylet/raylet")
"""What has the version of Ray in its data."""
NEW_VALUE = 77


@dataclass(frozen=True)
class Doctored:
    """What is another one: the version, names in protobufs as ``OWNER.NAME``, texts in files, symbols in the library.

    A name in ``protobufs`` that is mapped to None is removed, and ``new_values`` are added to enums. Each text of
    ``edits`` is replaced wherever it is in a file of Ray's. ``names`` are those in the body of a function, by its file
    and name.
    """

    version: str = ""
    protobufs: Mapping[str, str | None] = field(default_factory=dict)
    new_values: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    symbols: Mapping[str, str] = field(default_factory=dict)

    def copy(self, folder: Path, *, runs: bool = True) -> Path:
        """Makes the copy in a folder, which is the path to it; one that ``runs`` has libraries of its own."""
        ray = folder / "ray"
        for name, change in self._changes().items():
            if name in BINARIES and not runs:
                continue
            _split(ray, name)
            data = change((INSTALLED / name).read_bytes())
            path = ray / name
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            shutil.copymode(INSTALLED / name, path)
        return folder

    def edit(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        """Changes the names in a file's descriptor."""
        for owner, members in _owners(file):
            for key, new in self.protobufs.items():
                of, _, name = key.rpartition(".")
                if of == owner:
                    _rename(members, name, new)
            if owner in self.new_values:
                members.add(name=self.new_values[owner], number=NEW_VALUE)
        if None in self.protobufs.values():
            text = self._without_requests(text_format.MessageToString(file))
            file.CopyFrom(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))

    def _changes(self) -> dict[str, Callable[[bytes], bytes]]:
        changes: dict[str, Callable[[bytes], bytes]] = {LIBRARY: self._library}
        if self.version:
            changes |= {"_version.py": self._binary, **dict.fromkeys(BINARIES[1:], self._binary)}
        if self.protobufs or self.new_values:
            names = (f"{GENERATED}/{path.name}" for path in (INSTALLED / GENERATED).glob("*_pb2*.py"))
            changes |= dict.fromkeys(names, self._module)
        for name, edits in self.edits.items():
            changes[name] = lambda data, edits=edits: _replaced(data.decode(), edits).encode()  # type: ignore[misc]
        for (name, function), words in self.names.items():
            changes[name] = lambda data, of=(function, words): _renamed(data.decode(), *of).encode()  # type: ignore[misc]
        return changes

    def _binary(self, data: bytes) -> bytes:
        installed = version_of(INSTALLED) or ""
        assert len(self.version or installed) == len(installed), "the data of a binary cannot become longer"
        return data.replace(installed.encode(), (self.version or installed).encode())

    def _library(self, data: bytes) -> bytes:
        for old, new in self.symbols.items():
            assert len(old) == len(new), new
            assert old.encode() in data, old
            data = data.replace(old.encode(), new.encode())
        return self._binary(data)

    def _module(self, data: bytes) -> bytes:
        """A generated module; a service's methods are named in its stubs, too."""
        text = data.decode()
        if found := DESCRIPTORS.search(text):
            file = descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(found[1]))
            self.edit(file)
            return (text[: found.start(1)] + repr(file.SerializeToString()) + text[found.end(1) :]).encode()
        methods = {name.rpartition(".")[2]: new for name, new in self.protobufs.items() if "Service." in name}
        for old, new in methods.items():
            text = re.sub(rf"\b{old}\b", new or f"{old}Gone", text)
        return self._without_requests(text).encode()

    def _without_requests(self, text: str) -> str:
        """The text with other names for the messages of removed methods: a release would not have them either."""
        for key in (key for key, new in self.protobufs.items() if new is None and "Service." in key):
            text = re.sub(rf"\b{key.rpartition('.')[2]}Request\b", f"{key.rpartition('.')[2]}RequestOfOld", text)
        return text


def doctored_pool(doctored: Doctored) -> Any:
    """A pool with all descriptors of the installed Ray, changed."""
    pool = descriptor_pool.DescriptorPool()
    files = {name: descriptor_pb2.FileDescriptorProto.FromString(one) for name, one in _descriptors().items()}
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        if name not in files:  # protobuf's own
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
            return
        for needed in files[name].dependency:
            add(needed)
        doctored.edit(files[name])
        pool.Add(files[name])

    for name in files:
        add(name)
    return pool


@cache
def _descriptors() -> dict[str, bytes]:
    """The descriptors of all generated modules by the name of their file."""
    texts = (path.read_text(encoding="utf-8") for path in (INSTALLED / GENERATED).glob("*_pb2.py"))
    data = (ast.literal_eval(found[1]) for text in texts if (found := DESCRIPTORS.search(text)))
    return {descriptor_pb2.FileDescriptorProto.FromString(one).name: one for one in data}


def _owners(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[str, Any]]:
    """The messages, enums and services of a file by their names within Ray's package, with their members."""
    package = file.package.removeprefix("ray.rpc").strip(".")

    def of(prefix: str, message: Any) -> Iterator[tuple[str, Any]]:
        yield f"{prefix}{message.name}", message.field
        for inner in message.nested_type:
            yield from of(f"{prefix}{message.name}.", inner)
        for enum in message.enum_type:
            yield f"{prefix}{message.name}.{enum.name}", enum.value

    lead = f"{package}." if package else ""
    for message in file.message_type:
        yield from of(lead, message)
    for enum in file.enum_type:
        yield f"{lead}{enum.name}", enum.value
    for service in file.service:
        yield f"{lead}{service.name}", service.method


def _rename(members: Any, old: str, new: str | None) -> None:
    for at, member in enumerate(members):
        if member.name == old:
            if new is None:
                del members[at]
            else:
                member.name = new
                if hasattr(member, "json_name"):
                    member.ClearField("json_name")
            return


def _split(root: Path, name: str) -> None:
    """Makes a file's folders out of links to the other entries of the installed ones."""
    for folder in [Path("."), *reversed(Path(name).parents[:-1])]:
        if (root / folder).is_symlink():
            (root / folder).unlink()
        if not (root / folder).exists():
            (root / folder).mkdir(parents=True)
            for entry in os.listdir(INSTALLED / folder):
                if entry != "__pycache__":
                    (root / folder / entry).symlink_to(INSTALLED / folder / entry)


def _replaced(text: str, edits: Mapping[str, str]) -> str:
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def _renamed(text: str, function: str, names: Mapping[str, str]) -> str:
    """The source with other names in the body of each function of this name."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                for old, new in names.items():
                    lines[at] = re.sub(rf"\b{old}\b", new, lines[at])
    return "".join(lines)
