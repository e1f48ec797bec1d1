"""Threads in calls on process groups of stand-ins for torch and Ray's groups, which are not needed.

Modules, files, functions and locals have the original names. A ProcessGroup has a C object with rank, size and
description at the same offsets, and a call waits in C on a semaphore, like gloo. Prints as JSON the groups and labels
of the process, and the dependencies of each thread's call by the thread's name.
"""

import ctypes
import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

PACKAGES = "/srv/app/lib/python3/site-packages"
WORLD = "tcp://10.0.0.1:29500"
RANK, SIZE = 2, 4
FAILS_IN_S = 500

libc = ctypes.CDLL(None)
semaphore = ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


deadline = Timespec(int(time.time()) + FAILS_IN_S, 500_000_000)


class ProcessGroup(ctypes.Structure):
    """The address of the C object is where pybind11 has it."""

    _fields_ = [
        ("head", ctypes.c_char * 24),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("backend", ctypes.c_int64),
        ("text", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("characters", ctypes.c_char * 16),
    ]
    __hash__ = object.__hash__


kept: list[Any] = []


def group(rank: int, size: int, description: str) -> ProcessGroup:
    made = ProcessGroup(rank=rank, size=size, backend=1, length=len(description))
    characters = description.encode()
    if len(characters) < 16:
        made.characters = characters
        made.text = ctypes.addressof(made) + ProcessGroup.characters.offset
    else:
        buffer = ctypes.create_string_buffer(characters)
        made.text = ctypes.addressof(buffer)
        kept.append(buffer)
    return made


default = group(RANK, SIZE, "default_pg")
tp = group(0, 2, "mesh_tp")
long = group(1, 3, "the group of a very long description")
plain = group(1, 2, "undefined")
wrong_size = group(0, 3, "not_believed")
wrong_rank = group(0, 2, "not_believed")
RANKS: dict[Any, dict[int, int]] = {
    default: {rank: rank for rank in range(SIZE)},
    tp: {2: 0, 3: 1},
    long: {0: 0, 2: 1, 3: 2},
    plain: {0: 0, 2: 1},
    wrong_size: {0: 0, 1: 1},  # nor is the process a member
    wrong_rank: {0: 0, 2: 1},
    -100: {0: 0, 1: 1},  # what torch has for a group of others
}

TORCH = """
class _World:
    def __init__(self):
        self._default_pg = None
        self._comms = []

_world = _World()
_default_pg_init_method = "env://"

def all_reduce(tensor, op=None, group=None, async_op=False):
    sem_wait(semaphore)

def reduce(tensor, dst=None, op=None, group=None, async_op=False, group_dst=None):
    while True:
        usleep(10_000_000)

def all_gather_single(output_tensor, input_tensor, group=None, async_op=False):
    sem_wait(semaphore)

def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    all_gather_single(output_tensor, input_tensor, group)

def all_gather(tensor_list, tensor, group=None, async_op=False):
    sem_wait(semaphore)

def all_gather_object(object_list, obj, group=None):
    all_gather([], None, group)

def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
    group_src = 0
    (lambda: broadcast([None for _ in range(1) if group], group=group, group_src=group_src))()

def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    group_src = 1
    sem_wait(semaphore)

def recv(tensor, src=None, group=None, tag=0, group_src=None):
    sem_timedwait(semaphore, deadline)

def _new_process_group_helper(group_size, group_rank, global_ranks_in_group, backend, store, group_name):
    sem_wait(semaphore)

def _store_based_barrier(rank, store, group_name, rendezvous_count, timeout):
    sem_wait(semaphore)

def _new_group_with_tag(ranks=None, group_desc=None, with_barrier=False):
    group_name = "7"
    if with_barrier:
        _store_based_barrier(2, None, group_name, 4, None)
    _new_process_group_helper(2, 0, ranks, "gloo", None, group_name)

def new_group(ranks=None, timeout=None, group_desc=None, with_barrier=False):
    _new_group_with_tag(ranks, group_desc, with_barrier)

def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None):
    if store:
        _new_process_group_helper(world_size, rank, [], backend, store, "0")
    _create_c10d_store("10.0.0.7", 29700, 3, 5, timeout)
"""
RENDEZVOUS = """
def _create_c10d_store(hostname, port, rank, world_size, timeout, use_libuv=True):
    while True:
        usleep(10_000_000)
"""
COLLECTIVE = """
class TorchGLOOGroup:
    def __init__(self, world_size, rank, group_name):
        self._world_size, self._rank, self._group_name = world_size, rank, group_name

class NCCLGroup(TorchGLOOGroup):
    pass

class GroupManager:
    def __init__(self):
        self._name_group_map = {}

    def create_collective_group(self, backend, world_size, rank, group_name, gloo_timeout=None):
        init_process_group(backend, "env://", rank=rank, world_size=world_size)

_group_mgr = GroupManager()

def allreduce(tensor, group_name="default", op=None):
    all_reduce(tensor, group=None)

def send(tensor, dst_rank, group_name="default"):
    all_reduce(tensor)

def barrier(group_name="default"):
    get_group_handle(group_name)

def get_group_handle(group_name):
    _group_mgr.create_collective_group("GLOO", 3, 1, group_name)
"""


def module(name: str, source: str, **values: Any) -> types.ModuleType:
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(values)
    exec(compile(source, f"{PACKAGES}/{name.replace('.', '/')}.py", "exec"), made.__dict__)
    return made


blocking: dict[str, Any] = {"semaphore": semaphore, "sem_wait": libc.sem_wait, "usleep": libc.usleep}
rendezvous = module("torch.distributed.rendezvous", RENDEZVOUS, **blocking)
torch: Any = module(
    "torch.distributed.distributed_c10d",
    TORCH,
    **blocking,
    sem_timedwait=libc.sem_timedwait,
    deadline=ctypes.byref(deadline),
    _create_c10d_store=rendezvous._create_c10d_store,
    _pg_group_ranks=RANKS,
    _pg_names={one: str(at) for at, one in enumerate(RANKS)},
)
torch._world._default_pg = default
collective: Any = module(
    "ray.util.collective.collective",
    COLLECTIVE,
    all_reduce=torch.all_reduce,
    init_process_group=torch.init_process_group,
)
managed = collective._group_mgr._name_group_map
managed["gradients"] = collective.TorchGLOOGroup(SIZE, RANK, "gradients")
managed["other"] = collective.NCCLGroup(2, 1, "other")
managed["malformed"] = collective.NCCLGroup(2, 2, "malformed")
LABELS = {"tp": 1, "stage": "rollout", "share": 0.5, "is_first": True, "none": None, "list": [1], "long": "x" * 1000}
labels = module("dstack.labels", "", LABELS={**LABELS, **{f"label {i}": i for i in range(100)}})
os.environ.update(RANK="2", LOCAL_RANK="1", WORLD_SIZE="4", MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")


def membership(name: str, ranks: list[int], description: str = "", **others: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"library": "torch.distributed", "world": WORLD, "rank": RANK}
    return {**own, "name": name, "ranks": ranks, "description": description, **others}


DEFAULT = membership("0", [0, 1, 2, 3], "default_pg")
TP = membership("1", [2, 3], "mesh_tp")
GRADIENTS = membership("gradients", [0, 1, 2, 3], "gradients", library="ray.util.collective")
OTHER = membership("other", [0, 1], "other", library="ray.util.collective", world="", rank=1)
groups = [
    DEFAULT,
    TP,
    membership("2", [0, 2, 3], "the group of a very long description"),
    membership("3", [0, 2]),
    GRADIENTS,
    OTHER,
]
calls: dict[str, Any] = {}


def start(name: str, call: Callable[[], object], operation: str, group: dict[str, Any], **expects: Any) -> None:
    """Start a thread that makes this call, and record its dependencies; ``sleeps``: the library polls in the call."""
    calls[name] = {"operation": operation, "group": group, "peer": None, "sleeps": False, "fails_at": None, **expects}
    threading.Thread(target=call, name=name, daemon=True).start()


start("default", lambda: torch.all_reduce(None), "all_reduce", DEFAULT)
start("of a group", lambda: torch.all_reduce(None, group=tp), "all_reduce", TP)
start("that polls", lambda: torch.reduce(None, dst=1), "reduce", DEFAULT, peer=1, sleeps=True)
start("of objects", lambda: torch.all_gather_object([], 1, tp), "all_gather_object", TP)
start("of another name", lambda: torch.all_gather_into_tensor(None, None), "all_gather_into_tensor", DEFAULT)
start("with a root", lambda: torch.broadcast(None, group=tp), "broadcast", TP, peer=3)
start("in a cell", lambda: torch.broadcast_object_list([], 2, tp), "broadcast_object_list", TP, peer=2)
fails_at = deadline.seconds + 0.5
start("from a peer", lambda: torch.recv(None, src=3), "recv", DEFAULT, peer=3, fails_at=fails_at)
start("from any peer", lambda: torch.recv(None), "recv", DEFAULT, fails_at=fails_at)
MADE = membership("7", [2, 3], "mesh_ep")
start("new group", lambda: torch.new_group([2, 3], None, "mesh_ep"), "new_group", MADE)
OF_ALL = membership("7", [0, 1, 2, 3], "mesh_ep")
start("new group of others", lambda: torch.new_group([0, 1], None, "mesh_ep", True), "new_group", OF_ALL)
METHOD = "tcp://10.0.0.7:29700?use_libuv=1"
STARTED = membership("", [0, 1, 2, 3, 4], "default_pg", world="tcp://10.0.0.7:29700", rank=3)
start("started", lambda: torch.init_process_group(None, METHOD), "init_process_group", STARTED, sleeps=True)
IN_STORE = membership("", [0, 1], "default_pg", world="", rank=1)
with_store = {"rank": 1, "world_size": 2, "store": 1}
start("with a store", lambda: torch.init_process_group(**with_store), "init_process_group", IN_STORE)
start("of Ray", lambda: collective.allreduce(None, "gradients"), "allreduce", GRADIENTS)
start("sends in Ray", lambda: collective.send(None, 0, "other"), "send", OTHER, peer=0)
DECLARED = membership("declared", [0, 1, 2], "declared", library="ray.util.collective", rank=1)
start("declared", lambda: collective.barrier("declared"), "init_collective_group", DECLARED, sleeps=True)

print("expected", json.dumps({"groups": groups, "calls": calls}), flush=True)
print("ready", flush=True)
time.sleep(10_000)
