"""The messages of the cluster's own Ray, where dstack runs beside it with another one.

Ray renumbers fields: what a core worker of Ray 2.49 or older answers cannot be read by the modules of 2.50 or later, nor
the reverse. A raylet of this host shows where the cluster's Ray is. Its generated modules hold the descriptors of its
messages, which are read as data: nothing of the cluster's files is run. Seen on Ray 2.46 to 2.60.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from dstack.probes.connection import ray_stubs
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.raylets import RAYLET
from dstack.probes.node.ray_messages import text_of_file

VERSION = re.compile(r'^version = "([^"]+)"', re.MULTILINE)
DESCRIPTORS = re.compile(r"AddSerializedFile\((b'(?:[^'\\]|\\.)*')\)")
OF_RAYLET = "core/src/ray/raylet/raylet"
MESSAGES = "_pb2"


def stubs_of(version: str) -> Any:
    """An object with the generated modules for a cluster of this version of Ray: by default those of dstack's own."""
    if version == version_of(own_folder()):
        return ray_stubs
    folder = next((folder for folder in folders_here() if version_of(folder) == version), None)
    return ray_stubs if folder is None else ClusterStubs(folder)


def own_folder() -> Path:
    """The folder of the Ray that dstack imports."""
    return Path(ray_stubs.common_pb2.__file__).parents[2]


def folders_here() -> Iterator[Path]:
    """The folders of the Rays whose raylets run on this host, also in containers."""
    for pid in proc.all_pids():
        if proc.name(pid) == RAYLET and (words := proc.command(pid, 1)) and words[0].endswith(f"/{OF_RAYLET}"):
            yield Path(f"/proc/{pid}/root{words[0].removesuffix(OF_RAYLET)}")


def version_of(folder: Path) -> str | None:
    """The version of the Ray in a folder; None where it cannot be read."""
    match = VERSION.search(text_of_file(folder / "_version.py") or "")
    return match[1] if match else None


class ClusterStubs:
    """Ray's generated modules by name, made from the descriptors in a folder of Ray, apart from those of dstack's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "core" / "generated"
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        module = name.removesuffix("_grpc")
        if not module.endswith(MESSAGES):
            raise AttributeError(name)
        proto = self._add(f"{module}.py")
        return _Module(self._pool.FindFileByName(proto), self._folder / f"{module}.py")

    def _add(self, file: str) -> str:
        """Add the descriptors of a generated module, and before of those that it needs; returns the name of its proto."""
        match = DESCRIPTORS.search(text_of_file(self._folder / file) or "")
        if match is None:
            raise ImportError(f"{self._folder / file} has no descriptors")
        descriptor = FileDescriptorProto.FromString(ast.literal_eval(match[1]))
        if descriptor.name not in self._added:
            self._added.add(descriptor.name)
            for other in descriptor.dependency:
                self._add_dependency(other)
            self._pool.Add(descriptor)
        return str(descriptor.name)

    def _add_dependency(self, proto: str) -> None:
        if not proto.startswith("google/"):
            self._add(f"{Path(proto).stem}{MESSAGES}.py")
        elif proto not in self._added:
            self._added.add(proto)
            module = importlib.import_module(f"{proto.removesuffix('.proto').replace('/', '.')}{MESSAGES}")
            self._pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


class _Module:
    """The messages, enums and stubs of one proto, by the names that they have in its generated modules."""

    def __init__(self, descriptor: Any, file: Path) -> None:
        self.DESCRIPTOR = descriptor
        self.__file__ = str(file)

    def __getattr__(self, name: str) -> Any:
        if name in self.DESCRIPTOR.message_types_by_name:
            return message_factory.GetMessageClass(self.DESCRIPTOR.message_types_by_name[name])
        if name in self.DESCRIPTOR.enum_types_by_name:
            return EnumTypeWrapper(self.DESCRIPTOR.enum_types_by_name[name])
        service = self.DESCRIPTOR.services_by_name.get(name.removesuffix("Stub"))
        if service is None:
            raise AttributeError(name)
        return lambda channel: _Stub(channel, service)


class _Stub:
    """The methods of a service on a channel; those that dstack calls have one request and one reply."""

    def __init__(self, channel: Any, service: Any) -> None:
        self._channel = channel
        self._service = service

    def __getattr__(self, name: str) -> Any:
        method = self._service.methods_by_name[name]
        request, reply = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
        return self._channel.unary_unary(
            f"/{self._service.full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )
