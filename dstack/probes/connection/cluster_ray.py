"""The cluster's own Ray, where dstack runs beside it with another one: its messages, and the Python that has it.

A raylet of this host shows where both are. Ray renumbers fields: what a core worker of Ray 2.49 or older answers cannot
be read by the modules of 2.50 or later, nor the reverse. The generated modules of the cluster's Ray hold descriptors of
its messages, which are read as data. And only a Ray of the same version can join a cluster: for dstack's driver, the
cluster's Python is run if the same user runs the raylet. Seen on Ray 2.46 to 2.60.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from dstack.model.diagnosis import Check
from dstack.probes.connection import ray_stubs
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.raylets import RAYLET
from dstack.probes.node.ray_messages import folder_of_module, text_of_file, version_of

DESCRIPTORS = re.compile(r"AddSerializedFile\((b'(?:[^'\\]|\\.)*')\)")
OF_RAYLET = "core/src/ray/raylet/raylet"
OF_WORKERS = "--python_worker_command="
WORDS = 40
"""More words than a raylet's command line has up to the command of its workers."""
MESSAGES = "_pb2"
USE_THE_SAME = "Run dstack on a node of the cluster, or install the same Ray: pip install ray==VERSION."
RUN_AS = "Run dstack as the user of Ray and with its minor version of Python, or install it into Ray's environment."


@dataclass(frozen=True)
class RunningRay:
    """The Ray of a raylet here: its folder as the raylet and as this process see it, its Python, and its user."""

    folder: str
    seen: Path
    python: str
    user: int | None

    @property
    def version(self) -> str | None:
        """Its version; None where it cannot be read."""
        return version_of(self.seen)

    @property
    def is_usable(self) -> bool:
        """Whether its Python can load the packages of this one, and runs nothing of another user or container."""
        minor = f"/python{sys.version_info.major}.{sys.version_info.minor}/"
        is_here = os.path.exists(self.python) and version_of(Path(self.folder)) == self.version
        return is_here and minor in self.folder and self.user == os.geteuid()


def stubs_of(version: str) -> Any:
    """An object with the generated modules for a cluster of this version of Ray: by default those of dstack's own."""
    running = _beside(version)
    return ClusterStubs(running.seen) if running else ray_stubs


def python_of(version: str) -> str | None:
    """The Python for a driver of a cluster of this version of Ray; None for dstack's own."""
    running = _beside(version)
    return running.python if running and running.is_usable else None


def beside_checks(version: str, *, has_other_nodes: bool) -> list[Check]:
    """What dstack can use of a cluster with this version of Ray, if its own is another."""
    own, running = own_version(), _beside(version)
    if version == own:
        return []
    text = f"dstack's own is Ray {own}"
    if running is None:
        return [
            Check("limit", f"{text}; no raylet of this cluster runs here, so no other node can be read", USE_THE_SAME)
        ]
    if running.is_usable:
        return [Check("ok", f"{text}; it uses the messages and the Python of this cluster's Ray: {running.python}")]
    if has_other_nodes:
        return [
            Check("limit", f"{text}; the Python of this cluster's Ray cannot join from here: {running.python}", RUN_AS)
        ]
    return [Check("ok", f"{text}; it uses the messages of this cluster's Ray: {running.folder}")]


def own_version() -> str | None:
    """The version of the Ray that dstack imports."""
    return version_of(folder_of_module(ray_stubs.common_pb2))


def _beside(version: str) -> RunningRay | None:
    """The Ray of this version that runs on this host; None if dstack's own has it, too, or no raylet here does."""
    if version == own_version():
        return None
    return next((running for running in running_rays() if running.version == version), None)


def running_rays() -> Iterator[RunningRay]:
    """The Ray of each raylet on this host, also in containers."""
    for pid in proc.all_pids():
        words = proc.command(pid, WORDS) if proc.name(pid) == RAYLET else []
        if words and words[0].endswith(f"/{OF_RAYLET}"):
            folder = words[0].removesuffix(OF_RAYLET)
            workers = next((word for word in words if word.startswith(OF_WORKERS)), "")
            python = workers.removeprefix(OF_WORKERS).partition(" ")[0]
            yield RunningRay(folder, Path(f"/proc/{pid}/root{folder}"), python, proc.owner(pid))


class ClusterStubs:
    """Ray's generated modules by name, made from the descriptors in a folder of Ray, apart from dstack's own."""

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
        """Add the descriptors of a generated module, and first those that it needs; returns the name of its proto."""
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
