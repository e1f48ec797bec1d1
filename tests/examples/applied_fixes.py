"""Fixes that are no cures, each as a change of the example that the report is about: with it, the example ends.

``tests/unit/analysis/findings/test_applied_fixes.py`` compares ``words`` with the report on the recorded snapshot, and
``tests/integration/test_fixes.py`` runs the changed examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.paths import EXAMPLES


@dataclass(frozen=True)
class Applied:
    """A fix, by some ``words`` of it, and the parts of the ``example`` that it replaces. ``is_quick``: run by CI."""

    example: str
    words: str
    changes: Mapping[str, str]
    is_quick: bool = False

    @property
    def needs_libraries(self) -> bool:
        """Whether the example needs Ray's libraries."""
        return "libraries" in self.example.split("/")

    def write(self, folder: Path) -> Path:
        """Write the example with the fix applied to it."""
        text = (EXAMPLES / f"{self.example}.py").read_text()
        for old, new in self.changes.items():
            assert old in text, f"{self.example} has no {old!r}"
            text = text.replace(old, new)
        program = folder / f"{Path(self.example).name}.py"
        program.write_text(text)
        return program


OF_KINDS: Mapping[str, tuple[Applied, ...]] = {
    "deadlock": (
        Applied(
            "hangs/libraries/torch_rank_returned",
            "Make the same calls in the same order on all ranks",
            {"        if self.rank == 2:\n            return 0.0\n": ""},
        ),
        Applied(
            "hangs/libraries/torch_two_operations",
            "in the same order on all ranks",
            {"        if self.rank < 2:\n": "        if self.rank < RANKS:\n"},
        ),
        Applied(
            "hangs/libraries/torch_both_receive",
            "Let one rank send while the other receives: order both by rank",
            {
                "        dist.recv(theirs, src=1 - self.rank)\n": (
                    "        if self.rank == 0:\n            dist.recv(theirs, src=1)\n"
                ),
                "        dist.send(mine, dst=1 - self.rank)\n": (
                    "        dist.send(mine, dst=1 - self.rank)\n"
                    "        if self.rank == 1:\n            dist.recv(theirs, src=0)\n"
                ),
            },
        ),
        Applied(
            "hangs/libraries/torch_async_and_get",
            "give Rank.weight its own concurrency group or thread",
            {'name=f"rank {i}"': 'name=f"rank {i}", max_concurrency=2'},
        ),
        Applied(
            "hangs/libraries/data_split_reader_asks_other",
            "let no reader wait for another before it iterates",
            {
                "        scale: int = ray.get(first.scale.remote()) if first else 1\n"
                '        return scale * sum(len(batch["id"]) for batch in split.iter_batches())': (
                    '        count = sum(len(batch["id"]) for batch in split.iter_batches())\n'
                    "        return count * (ray.get(first.scale.remote()) if first else 1)"
                )
            },
        ),
        Applied(
            "hangs/libraries/train_data_in_two_orders",
            "Make all ranks read their data and call collectives (such as ray.train.report) in the same order",
            {
                '        train.report({"loss": 0.5})\n'
                '        print(sum(len(batch["id"]) for batch in shard.iter_batches()))\n': (
                    '        print(sum(len(batch["id"]) for batch in shard.iter_batches()))\n'
                    '        train.report({"loss": 0.5})\n'
                )
            },
        ),
        Applied(
            "hangs/libraries/train_ranks_in_two_orders",
            "in the same order on all ranks",
            {
                '        train.report({"loss": 0.5})\n        ray.get(barrier.arrive.remote())\n': (
                    '        ray.get(barrier.arrive.remote())\n        train.report({"loss": 0.5})\n'
                )
            },
        ),
    ),
    "orphaned": (
        Applied(
            "hangs/removed_placement_group",
            "Create another placement group and submit the task again with it",
            {
                '    print("ready"': (
                    '    group = placement_group([{"CPU": 1}])\n'
                    "    result = late.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()\n"
                    '    print("ready"'
                )
            },
        ),
        Applied(
            "hangs/removed_group_of_actor",
            "Create another placement group and create a new actor in it",
            {
                '    print("ready"': (
                    '    strategy = PlacementGroupSchedulingStrategy(placement_group([{"CPU": 1}]))\n'
                    "    singer = ray.remote(Singer).options(num_cpus=1, scheduling_strategy=strategy).remote()\n"
                    '    print("ready"'
                )
            },
        ),
        Applied(
            "hangs/get_after_fork",
            "call Ray in the parent process and pass plain data to the child",
            {
                "def read(store: Any, index: int, rows": "def read(value: int, rows",
                "rows.put(ray.get(store.read.remote(index)))": "rows.put(value)",
                "args=(store, index, rows)": "args=(ray.get(store.read.remote(index)), rows)",
            },
        ),
        Applied(
            "hangs/lock_held_at_fork",
            "before the parent starts threads",
            {
                "        journal, fork = Journal(), multiprocessing": "        fork = multiprocessing",
                "target=journal.add, args=(f": "target=print, args=(f",
                "        for child in children:\n            child.join()": (
                    "        journal = Journal()\n        journal.add('all')\n"
                    "        for child in children:\n            child.join()"
                ),
            },
        ),
        Applied(
            "hangs/libraries/train_ranks_apart",
            "Make the same calls on all ranks, the same number of times",
            {"    if train.get_context().get_world_rank() == 0:\n        barrier()\n": "    barrier()\n"},
        ),
    ),
    "infeasible": (
        Applied(
            "argument_never_comes",
            "Reduce what develop asks for",
            {'@ray.remote(resources={"darkroom": 1})': "@ray.remote"},
        ),
        Applied("hangs/strict_pack", "use the strategy PACK instead of STRICT_PACK", {"STRICT_PACK": "PACK"}),
        Applied(
            "hangs/label_of_no_node",
            "Change the label selector of station:Station.__init__",
            {', label_selector={"zone": "antarctica"}': ""},
        ),
    ),
    "stalled": (
        Applied(
            "hangs/failed_call_never_fetched",
            "Correct the error of Rank.step",
            {"first, [], 900.0": "first, [1.0], 0.1"},
        ),
        Applied(
            "hangs/engine_loop_raised",
            "Correct the ZeroDivisionError at engine_loop_raised.py",
            {"/ len(request.prompt)": "/ max(1, len(request.prompt))"},
        ),
        Applied(
            "hangs/queue_never_filled",
            "let it run: raise max_concurrency of its actor",
            {'name="consumer"': 'name="consumer", max_concurrency=2'},
        ),
    ),
    "failed": (
        Applied(
            "hangs/output_of_failed_call_awaited",
            "Correct the error of Worker.execute_model",
            {".remote([], 900.0)": ".remote([1.0], 0.1)"},
        ),
    ),
    "starved": (
        Applied(
            "hangs/detached_gpu",
            'End actor Notebook "notebook" if nothing needs it any more (ray.kill',
            {'    print("ready"': '    ray.kill(ray.get_actor("notebook", namespace="yesterday"))\n    print("ready"'},
        ),
    ),
    "running": (
        Applied(
            "look_alikes/cancelled_call_goes_on",
            "do not catch asyncio.CancelledError",
            {"except BaseException:": "except Exception:"},
        ),
    ),
}
"""By the kinds of the other findings, and of deadlocks of process groups."""

APPLIED = tuple(one for some in OF_KINDS.values() for one in some)
