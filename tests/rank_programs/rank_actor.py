"""What each generated rank program is made of: its actors, its driver, and an oracle inside each rank.

It is copied beside the program, so that Ray's workers can import it. Run by itself, it asks the ranks of a
program what they have recorded: rank_actor.py RANKS. That is another driver, which could call the ranks, so dstack
comes first.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import ray

NAMESPACE = "ranks"
ANSWER_S = 60.0


class Rank:
    """A rank whose program counts each collective before it is entered, in a file that others can read."""

    def __init__(self, rank: int, ranks: int, port: int, folder: str) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.rank, self.ranks, self.port = rank, ranks, port
        self.log = Path(folder) / f"rank{rank}"
        self.groups: dict[str, Any] = {}

    def note(self, **values: Any) -> None:
        """Append a line to the file of the rank."""
        with self.log.open("a") as stream:
            stream.write(json.dumps(values) + "\n")

    def join(self) -> None:
        """Join the world of all ranks, with its default group."""
        import torch.distributed as dist

        init_method = f"tcp://127.0.0.1:{self.port}"
        dist.init_process_group("gloo", init_method=init_method, rank=self.rank, world_size=self.ranks)
        self.groups["world"] = dist.group.WORLD
        self.note(joined=True)

    def on(self, group: str) -> Any:
        """Count a collective of this group, at the line of the program, and return the group."""
        frame: Any = sys._getframe(1)
        while not frame.f_code.co_filename.endswith("/program.py"):  # Ray wraps all methods
            frame = frame.f_back
        self.note(group=group, line=frame.f_lineno)
        return self.groups[group]

    def run(self) -> None:
        """Run the program and note how it ended."""
        try:
            self.train()
        except BaseException as error:
            self.note(end=f"{type(error).__name__}: {error}"[:300])
            raise
        self.note(end="returned")

    def train(self) -> None:
        """The program, which the generated class has."""
        raise NotImplementedError

    @ray.method(concurrency_group="oracle")
    def oracle(self) -> list[dict[str, Any]]:
        """The collectives that torch itself has recorded, by their groups' names; sends and receives are left out."""
        from torch._C import _distributed_c10d as c10d

        entries = pickle.loads(c10d._dump_fr_trace(includeStackTraces=False))["entries"]
        return [_plain(entry) for entry in entries if not entry["is_p2p"]]


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    """A record with what a ledger has but the line, which takes torch a second of CPU to find."""
    _, description = entry["process_group"]
    return {
        "group": "world" if description == "default_pg" else description,
        "number": entry["collective_seq_id"],
        "operation": entry["profiling_name"].rpartition(":")[2],
        "sizes": entry["input_sizes"],
        "types": entry["input_dtypes"],
    }


def drive(program: type[Rank], ranks: int, gathers: str) -> None:
    """Start the ranks, and wait for all of them in one of two ways; then wait until killed."""
    ray.init(namespace=NAMESPACE)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    remote: Any = ray.remote(concurrency_groups={"oracle": 1}, num_cpus=0)(program)
    folder = str(Path(sys.argv[0]).parent)
    made = [remote.options(name=f"rank{rank}").remote(rank, ranks, port, folder) for rank in range(ranks)]
    refs = [one.run.remote() for one in made]
    print("ready", flush=True)
    for ref in refs if gathers == "get" else ():
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            print(error, flush=True)
    ray.wait(refs, num_returns=len(refs))
    print("ended", flush=True)
    threading.Event().wait()


def ask(ranks: int) -> None:
    """Print what each rank has recorded, as JSON; null for a rank whose process gloo has aborted."""
    ray.init(namespace=NAMESPACE, log_to_driver=False)
    print(json.dumps([_answer_of(rank) for rank in range(ranks)]))


def _answer_of(rank: int) -> Any:
    try:
        return ray.get(ray.get_actor(f"rank{rank}").oracle.remote(), timeout=ANSWER_S)
    except (ValueError, ray.exceptions.RayActorError):  # no actor has that name, or it has died
        return None


if __name__ == "__main__":
    ask(int(sys.argv[1]))
