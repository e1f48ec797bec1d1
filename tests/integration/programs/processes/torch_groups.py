"""A rank of torch.distributed with gloo, in every kind of call at once, each on a group of its own and in a thread.

``torch_groups.py PORT RANK [CALL]``: rank 0 makes the calls, or this one alone, and rank 1 never comes. Prints the
groups' names by description.
"""

import datetime
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d

PORT, RANK = map(int, sys.argv[1:3])
TIMEOUT = datetime.timedelta(seconds=600)
ONES, MANY = torch.ones(4), torch.ones(1 << 24)

Calls = dict[str, Callable[[Any], object]]
CALLS: Calls = {
    "all_gather": lambda group: dist.all_gather([ONES.clone(), ONES.clone()], ONES, group=group),
    "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(torch.ones(8), ONES, group=group),
    "all_gather_object": lambda group: dist.all_gather_object([None, None], 1, group=group),
    "all_reduce": lambda group: dist.all_reduce(ONES.clone(), group=group),
    "all_to_all_single": lambda group: dist.all_to_all_single(torch.ones(2), torch.ones(2), group=group),
    "barrier": lambda group: dist.barrier(group=group),
    "broadcast": lambda group: dist.broadcast(ONES.clone(), src=1, group=group),
    "broadcast_object_list": lambda group: dist.broadcast_object_list([None], src=1, group=group),
    "gather": lambda group: dist.gather(ONES, [ONES.clone(), ONES.clone()], dst=0, group=group),
    "gather_object": lambda group: dist.gather_object(1, [None, None], dst=0, group=group),
    "monitored_barrier": lambda group: dist.monitored_barrier(group=group, timeout=TIMEOUT),
    "recv": lambda group: dist.recv(ONES.clone(), src=1, group=group),
    "recv_object_list": lambda group: dist.recv_object_list([None], src=1, group=group),
    "reduce": lambda group: dist.reduce(ONES.clone(), dst=0, group=group),
    "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(torch.ones(2), ONES, group=group),
    "scatter": lambda group: dist.scatter(ONES.clone(), src=1, group=group),
    "scatter_object_list": lambda group: dist.scatter_object_list([None], [], src=1, group=group),
    "send": lambda group: dist.send(MANY, dst=1, group=group),
}


def wait_of_all_reduce(group: Any) -> None:
    dist.all_reduce(ONES.clone(), group=group, async_op=True).wait()


def wait_of_irecv(group: Any) -> None:
    work = dist.irecv(ONES.clone(), src=1, group=group)
    assert work is not None
    work.wait()


def wait_tensor(group: Any) -> None:
    functions: Any = functional
    functions.wait_tensor(functions.all_reduce(ONES, "sum", group))


def backward(model: Any) -> None:
    model(torch.ones(2, 4)).sum().backward()


CALLS["wait_tensor"] = wait_tensor
CALLS["Work.wait of all_reduce"] = wait_of_all_reduce
CALLS["Work.wait of irecv"] = wait_of_irecv


def call_alone(name: str) -> None:
    of_two = dist.new_group([0, 1], timeout=TIMEOUT, group_desc="of two")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    print("ready", flush=True)
    if RANK == 1:
        time.sleep(10_000)
    calls: Calls = {**CALLS, "backward": lambda group: backward(model)}
    calls[name](of_two if name.startswith(("Work", "wait")) else None)


def main() -> None:
    method = f"tcp://127.0.0.1:{PORT}"
    dist.init_process_group("gloo", init_method=method, rank=RANK, world_size=2, timeout=TIMEOUT)
    if sys.argv[3:]:
        call_alone(sys.argv[3])
    groups = {name: dist.new_group([0, 1], timeout=TIMEOUT, group_desc=f"of {name}") for name in CALLS}
    if RANK == 0:
        for name, call in CALLS.items():
            threading.Thread(target=call, args=(groups[name],), name=name, daemon=True).start()
        threading.Thread(target=dist.new_group, name="new_group", kwargs={"group_desc": "made"}, daemon=True).start()
    names: Any = distributed_c10d._world.pg_names
    print("names", json.dumps({f"of {name}": names[group] for name, group in groups.items()}), flush=True)
    print("ready", flush=True)
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    main()
