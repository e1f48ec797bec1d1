"""What dstack reads of a rank that waits for its GPU, beside what torch says: ``python -m tests.versions.gpu_check``.

It needs one NVIDIA GPU, and torch with CUDA and NCCL beside Ray in the environment that runs it. It takes two
minutes. An actor is the only rank of a group on NCCL. It waits (a) in ``Tensor.item`` for a kernel that spins, and (b)
in ``torch.cuda.synchronize`` for collectives behind such a kernel. Kernels end by themselves after :data:`SPIN_S`. The
exit code is 1 if a value differs.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray

from dstack.analysis.index.process_index import newest_processes
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.observed.node import Gpu
from dstack.report.text import report_text

SPIN_S = 40.0
"""A kernel spins for so long: enough for ``dstack check``, which is given up before."""
CALIBRATED = 200_000_000
"""Clock cycles of a first kernel, which shows how many take :data:`SPIN_S`."""
WORKS = 3
RECORDER = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "100", "TORCH_FR_BUFFER_SIZE": "100"}


class Rank:
    """The only rank of a group on NCCL; one thread of it waits, another one asks torch."""

    def __init__(self, rendezvous: str) -> None:
        os.environ.update(RECORDER)
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._waits = torch, dist, threading.Event()
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", init_method=f"file://{rendezvous}", rank=0, world_size=1)
        self._ones = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(self._ones)
        torch.cuda.synchronize()
        began_s = time.monotonic()
        torch.cuda._sleep(CALIBRATED)
        torch.cuda.synchronize()
        self._cycles = int(CALIBRATED / (time.monotonic() - began_s) * SPIN_S)

    def spin(self) -> float:
        """(a) The value of a tensor behind a kernel that spins."""
        self._torch.cuda._sleep(self._cycles)
        self._waits.set()
        return float(self._ones.sum().item())

    def synchronize(self) -> None:
        """(b) Collectives that are pending behind such a kernel."""
        self._torch.cuda._sleep(self._cycles)
        works = [self._dist.all_reduce(self._ones, async_op=True) for _ in range(WORKS)]
        self._waits.set()
        self._torch.cuda.synchronize()
        assert all(work.is_completed() for work in works)

    def torch_says(self) -> dict[str, Any]:
        """What torch knows, once the other thread is about to wait."""
        self._waits.wait()
        self._waits.clear()
        time.sleep(2.0)
        free, total = self._torch.cuda.mem_get_info(0)
        found: dict[str, Any] = {"pid": os.getpid(), "total": total, "used": total - free}
        found["collectives"] = self._dist.group.WORLD._get_sequence_number_for_group()
        trace = pickle.loads(self._torch._C._distributed_c10d._dump_nccl_trace())
        found["recorded"] = [(one["profiling_name"], one["state"]) for one in trace["entries"][-WORKS:]]
        return found


def main() -> None:
    ray.init(num_gpus=1, include_dashboard=False, log_to_driver=False)
    address = ray.get_runtime_context().gcs_address
    rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
    rank = ray.remote(num_gpus=1, max_concurrency=2)(Rank).remote(rendezvous)
    results = [is_right for method in ("spin", "synchronize") for is_right in compared(rank, method, address)]
    ray.shutdown()
    sys.exit(not all(results))


def compared(rank: Any, method: str, address: str) -> Iterator[bool]:
    """Prints what dstack and torch say while the rank waits in this method; whether each value agrees."""
    waiting = getattr(rank, method).remote()
    threading.Thread(target=ray.get, args=(waiting,), daemon=True).start()
    of_torch: dict[str, Any] = ray.get(rank.torch_says.remote(), timeout=SPIN_S)
    file = os.path.join(tempfile.mkdtemp(), "snapshot.json.gz")
    command = [sys.executable, "-m", "dstack", "snapshot", "--address", address, "-o", file]
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=SPIN_S / 2, check=False)
    snapshot = load(file)
    print(f"\n== {method}\n{report_text(AnalysedSnapshot.of(snapshot), details=True)}")
    own = next(one for one in newest_processes(snapshot).values() if one.pid == of_torch["pid"])
    gpu = next((gpu for node in snapshot.nodes for gpu in node.host.gpus or ()), Gpu(index=0))
    ledger = next((one for one in own.ledgers if one.backend == "nccl"), None)
    last = [own.collectives[call].operation for call in ledger.calls[-WORKS:]] if ledger else []
    print(f"torch:  {of_torch}\ndstack: {gpu}, {own.cuda}, {own.gpus}, {own.process_groups}, {ledger}")
    used, total = gpu.memory_used_bytes or 0, gpu.memory_total_bytes or 0
    yield agree("the rank has a CUDA context", own.cuda in ("listed", "mapped"))
    yield agree("total memory", abs(total / of_torch["total"] - 1) < 0.05)
    yield agree("used memory", abs(used - of_torch["used"]) < 0.05 * of_torch["total"])
    yield agree("collectives entered", ledger is not None and ledger.entered == of_torch["collectives"])
    yield agree("the last collectives", [f"nccl:{one}" for one in last] == [name for name, _ in of_torch["recorded"]])
    yield agree("the GPU is busy", (gpu.utilisation_percent or 0.0) >= 90.0)
    ray.get(waiting, timeout=4 * SPIN_S)


def agree(what: str, is_right: bool) -> bool:
    print(f"{'agrees ' if is_right else 'DIFFERS'}  {what}")
    return is_right


if __name__ == "__main__":
    main()
