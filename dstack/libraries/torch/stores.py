"""The waits for a store of torch.distributed: for a key, for the store's server, or for all of its clients.

torch waits in C++, right below the frame that calls it, so what is called shows only on the value stack of that frame.
The address is in the C++ object: the offsets are the same in torch 2.13.0, 2.14.1 and 2.15.0 on Linux x86-64. A wait
for a key must be a poll of a connection to that address, else the words of the stack are left over from another call.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dstack.libraries.torch import STORE, STORE_START
from dstack.libraries.torch.groups import CPP_OBJECT
from dstack.observed.calls import Call, End, EndState, KernelObjects, StoreUse
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import BOUND_TO, Objects
from dstack.probes.node.procfs.open_files import KernelTables
from dstack.probes.node.procfs.proc import SystemCall
from dstack.probes.node.system_calls import KernelWaits

TCP_STORE, PREFIX_STORE = "TCPStore", "PrefixStore"
WAITING = ("get", "multi_get", "queue_pop", "wait")
"""The methods that wait until a key is set."""
FUNCTION = 16
"""The offset of the function in a bound method, and of its definition, which begins with its name, in one of C."""
TEXT, PORT_OR_INNER = 24, 56
"""Offsets in the C++ objects: the host of a TCPStore, or the prefix of a PrefixStore; the port, or the inner store."""
HOST = re.compile(r"[A-Za-z0-9_.:%-]+")
MAX_HOST, MAX_NAME, MAX_KEY, MAX_KEYS, MAX_PREFIXES = 253, 16, 200, 16, 8
LOWEST_PORT, HIGHEST_PORT = 1_024, 65_535
NO_POINTER = 4_096
SHORT_S = 60.0
"""Programs that look for a key again and again have a shorter timeout. A longer one ends the call with an error."""


@dataclass(frozen=True)
class _Called:
    """What a frame calls: a method for these keys, or the constructor of a store, which has a size."""

    method: str
    address: str
    keys: tuple[str, ...] = ()
    size: int | None = None


class StoreCalls:
    """The waits for stores in one process, by the frames that call them; nothing is raised."""

    def __init__(self, objects: Objects, tables: KernelTables, kernel: KernelWaits) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._tables = tables
        self._kernel = kernel

    def call(self, leaf: MemoryFrame, blocked_in: SystemCall) -> Call | None:
        """The wait for a store right below this frame; None for any other wait."""
        with contextlib.suppress(UnreadableMemory):
            called = self._called([word for word in leaf.stack[leaf.blocks :] if word > NO_POINTER])
            if called is None or blocked_in.is_sleep is bool(called.method):
                return None
            return self._for_keys(called, blocked_in) if called.method else self._for_others(called, blocked_in)
        return None

    def _for_keys(self, called: _Called, blocked_in: SystemCall) -> Call | None:
        need = self._kernel.objects(blocked_in)
        port = called.address.rpartition(":")[2]
        if need is None or [end.name.rpartition(":")[2] for end in need.ends if end.what == "TCP"] != [port]:
            return None
        timeout_s = self._kernel.timeout_s(blocked_in)
        keys = f"key{'s' * (len(called.keys) > 1)} {', '.join(called.keys)}"
        return Call(
            site=STORE.id,
            frame=0,
            need=replace(need, store=StoreUse(address=called.address, keys=called.keys)),
            name=f"Store.{called.method} of torch.distributed for {keys} at {called.address}",
            timeout_s=timeout_s if timeout_s is not None and timeout_s < SHORT_S else None,
        )

    def _for_others(self, called: _Called, blocked_in: SystemCall) -> Call:
        """The constructor: it sleeps between its attempts to connect, or until all clients have come."""
        pid, address = self._memory.pid, called.address
        listeners = self._tables.listeners_at(pid, address)
        is_server = any(one.pid == pid for one in listeners or ())
        state: EndState = "listening" if is_server else "refused" if listeners == () else "connecting"
        end = End(what="TCP", name=address, identity=address, state=state, holders=listeners or ())
        port = address.rpartition(":")[2]
        sockets = self._tables.tcp_of(pid).values() if is_server else ()
        clients = sum(one.is_connected and one.local.rpartition(":")[2] == port for one in sockets)
        use = StoreUse(address=address, size=called.size or 0, clients=clients, is_server=is_server)
        size = f" until {use.size} processes have connected" if is_server and use.size else ""
        return Call(
            site=STORE_START.id,
            frame=0,
            need=KernelObjects(system_call=blocked_in.name or "nanosleep", ends=(end,), store=use),
            name=f"{STORE_START.name}{size}",
        )

    # The value stack

    def _called(self, words: Sequence[int]) -> _Called | None:
        for at in range(len(words) - 1):
            with contextlib.suppress(UnreadableMemory, UnicodeDecodeError):
                if found := self._method(*words[at : at + 3]):
                    return found
        return self._constructor(words[1:]) if words and self._is_class(words[0]) else None

    def _is_class(self, word: int) -> bool:
        names = self._objects.base_names(word) if self._objects.is_kind_of(word, "type") else ()
        return any(name.rpartition(".")[2] == TCP_STORE for name in names)

    def _method(self, function: int, store: int, argument: int = 0) -> _Called | None:
        """A method on the stack: its function and its store, or both bound together, and then its argument."""
        if self._objects.is_a(function, "method"):
            argument = store
            function, store = self._memory.pointer(function + FUNCTION), self._memory.pointer(function + BOUND_TO)
        if not self._objects.is_a(function, "builtin_function_or_method"):
            return None
        if not self._objects.is_kind_of(store, TCP_STORE) and not self._objects.is_kind_of(store, PREFIX_STORE):
            return None
        text = self._memory.read(self._memory.pointer(self._memory.pointer(function + FUNCTION)), MAX_NAME)
        method = text.partition(b"\0")[0].decode()
        keys, address = self._keys(argument), self._address(store)
        return _Called(method, address, keys) if method in WAITING and keys and address else None

    def _keys(self, argument: int) -> tuple[str, ...]:
        is_list = self._objects.is_a(argument, "list", "tuple")
        items = self._objects.items(argument, MAX_KEYS) if is_list else (argument,)
        return tuple(self._objects.text(one, MAX_KEY) for one in items if self._objects.is_a(one, "str"))

    def _constructor(self, words: Sequence[int]) -> _Called | None:
        """By its arguments, of which the host is a text, and the port the first number that can be one."""
        host, numbers = "", []
        for word in words:
            with contextlib.suppress(UnreadableMemory):
                if self._objects.is_a(word, "str") and not host:
                    host = self._objects.text(word, MAX_HOST)
                elif self._objects.is_a(word, "int"):
                    numbers.append(int(self._objects.number(word) or 0))
        port = next((one for one in numbers if LOWEST_PORT <= one <= HIGHEST_PORT), None)
        if port is None or not HOST.fullmatch(host):
            return None
        return _Called("", f"{host}:{port}", size=next((one for one in numbers if 0 < one != port), None))

    # The objects of C++

    def _address(self, store: int) -> str:
        """The address of a TCPStore, or of the one in a PrefixStore; empty if it is in another store."""
        cpp = self._memory.pointer(store + CPP_OBJECT)
        if self._objects.is_kind_of(store, PREFIX_STORE):
            kind = self._memory.pointer(cpp)
            for _ in range(MAX_PREFIXES):
                if self._memory.pointer(cpp) == kind:
                    cpp = self._memory.pointer(cpp + PORT_OR_INNER)
        start, size = self._memory.pointers(cpp + TEXT, 2)
        host = self._memory.read(start, size).decode() if 0 < size <= MAX_HOST else ""
        (port,) = self._memory.unpack("<H", cpp + PORT_OR_INNER)
        return f"{host}:{port}" if HOST.fullmatch(host) and port else ""
