"""A rank of three with gloo: ``torch_ledgers.py PORT RANK``. Prints what torch itself has recorded, as JSON.

Ranks 0 and 1 send to each other, and the last rank leaves out one collective.
"""

import json
import pickle
import sys
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

PORT, RANK = map(int, sys.argv[1:3])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=RANK, world_size=3)
pair = dist.new_group([0, 1], group_desc="pair")
values, whole = torch.ones(2, 3), torch.ones(4, dtype=torch.int64)
for _ in range(300):
    dist.all_reduce(values)
if RANK < 2:
    dist.all_reduce(values, group=pair)
    (dist.recv if RANK else dist.send)(values, 1 - RANK)
    dist.broadcast(torch.ones((), dtype=torch.bfloat16), 0)
    dist.broadcast(whole, 0, group=pair)
else:
    dist.broadcast(torch.ones((), dtype=torch.bfloat16), 0)
dist.all_gather([whole.clone() for _ in range(3)], whole)
dist.reduce_scatter_tensor(torch.ones(2), torch.ones(6))
dist.barrier()
if RANK < 2:
    late = dist.all_reduce(values, async_op=True)
time.sleep(1.0)
print(
    json.dumps([{**one, "frames": one["frames"]} for one in pickle.loads(c10d._dump_fr_trace())["entries"]]), flush=True
)
print("ready", flush=True)
time.sleep(1_000)
