"""The fixes of reports, each as a change of the example that the report is about: with it, the example ends.

``tests/unit/analysis/findings/test_deadlock_fixes.py`` compares ``words`` with the report on the recorded snapshot, and
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


OF_RULES: Mapping[str, tuple[Applied, ...]] = {
    "_serve_slots": (
        Applied("hangs/libraries/serve_mutual_calls", "Raise max_ongoing_requests (now 1)", {"LIMIT = 1": "LIMIT = 2"}),
        Applied(
            "hangs/libraries/serve_replicas_start_each_other",
            "make the call in the first request",
            {
                "        self.hour: int = await self.shop.opens_at.remote()\n": "",
                '        return ["soup"]': '        return ["soup"] if await self.shop.opens_at.remote() else []',
                "        self.menu: list[str] = await kitchen.menu.remote()\n": "        self.kitchen = kitchen\n",
                "bind()), route_prefix=None)": (
                    "bind()), route_prefix=None)\n"
                    '    print(serve.get_deployment_handle("Kitchen", "default").menu.remote().result())\n'
                ),
            },
        ),
    ),
    "_held_until_released": (
        Applied("hangs/actors_for_life", "Start fewer of them", {"range(cpus + 1)": "range(cpus)"}),
        Applied("hangs/polls_status_of_starved_task", "Let it ask for less", {"num_cpus=1": "num_cpus=0"}),
        Applied(
            "hangs/libraries/train_needs_own_cpus",
            "Let it ask for less (ScalingConfig of the trainer)",
            {"num_workers=2": "num_workers=1"},
        ),
        Applied(
            "hangs/libraries/tune_trial_lacks_a_bundle",
            "reserve another bundle with CPU",
            {'[{"CPU": 1}, {"CPU": 1}]': '[{"CPU": 1}] * 3', "num_cpus=2": "num_cpus=3"},
        ),
    ),
    "_kept_arrays": (
        Applied(
            "hangs/graph_output_kept", "Copy the arrays", {"history.append(state)": "history.append(state.copy())"}
        ),
    ),
    "_full_channels": (
        Applied(
            "hangs/actor_in_two_graphs",
            "call teardown() of the first graph before compiling the second",
            {"    rank = ranking": "    embed.teardown()\n    rank = ranking"},
        ),
        Applied(
            "hangs/graph_stage_calls_home",
            "max_concurrency=2",
            {'name="pipeline"': 'name="pipeline", max_concurrency=2'},
        ),
    ),
    "_held_while_waiting": (
        Applied(
            "hangs/main_awaits_own_thread", "num_cpus=0 for a task that only waits", {"(num_cpus=2)": "(num_cpus=0)"}
        ),
        Applied(
            "hangs/nested_gpu_tasks",
            "return its ObjectRef instead of getting it",
            {
                "    score: float = ray.get(evaluate.remote(0.5))\n    return score": "    return evaluate.remote(0.5)",
                "print(ray.get(score))": "print(ray.get(ray.get(score)))",
            },
        ),
        Applied(
            "hangs/gpu_of_bundle",
            "start that first",
            {
                "def train(strategy: Any) -> float:": "def train(score: float) -> float:",
                "    return ray.get(evaluate.options(scheduling_strategy=strategy).remote())": "    return score",
                ".remote(strategy)": ".remote(evaluate.options(scheduling_strategy=strategy).remote())",
            },
        ),
        Applied(
            "hangs/licence_not_lent",
            "let it ask for less",
            {'@ray.remote(resources={"licence": 1})\ndef refine': "@ray.remote\ndef refine"},
        ),
    ),
    "_barrier": (
        Applied(
            "hangs/barrier_one_missing",
            "make the call on the same side of the barrier in all of them",
            {
                "        weights: list[float] = ray.get(first.weights.remote())\n"
                "        ray.get(barrier.arrive.remote())\n": "        ray.get(barrier.arrive.remote())\n"
                "        weights: list[float] = ray.get(first.weights.remote())\n"
            },
        ),
        Applied(
            "hangs/barrier_one_missing",
            "give the called actor max_concurrency=2",
            {'name=f"rank {i}"': 'name=f"rank {i}", max_concurrency=2'},
        ),
    ),
    "_constructor": (
        Applied(
            "hangs/call_in_init",
            "make that call after the constructor has ended",
            {
                "    def __init__(self, registry: Any) -> None:\n"
                "        me = ray.get_runtime_context().current_actor\n"
                "        self.number: int = ray.get(registry.register.remote(me))\n\n": "",
                ".remote(registry)\n": ".remote()\n    ray.get(registry.register.remote(plugin))\n",
            },
        ),
    ),
    "_locks": (
        Applied(
            "hangs/lock_and_callback",
            "Get the value first, then take the lock",
            {
                "        with self.lock:\n            self.goods += ray.get(warehouse.pick.remote(shelf))": (
                    "        picked = ray.get(warehouse.pick.remote(shelf))\n"
                    "        with self.lock:\n            self.goods += picked"
                )
            },
        ),
        Applied(
            "hangs/locks_in_two_orders",
            "Take the locks in the same order",
            {
                "current, savings, both": "savings, current, both",
                "        both_begun.wait()\n": "        print('begun')\n",
            },
        ),
        Applied(
            "hangs/lock_across_await",
            "use an asyncio.Lock",
            {"threading.Lock()": "asyncio.Lock()", "        with self.lock": "        async with self.lock"},
        ),
    ),
    "_in_kernel": (
        Applied(
            "hangs/child_output_unread",
            "as Popen.communicate does",
            {"        return exporter.wait()": "        exporter.communicate()\n        return exporter.wait()"},
        ),
        Applied(
            "hangs/file_lock_of_caller",
            "Do not wait for another process while holding a file lock",
            {
                "            stored: int = ray.get(other.store.remote(path))\n            return stored": (
                    '            file.write("refreshed")\n        return int(ray.get(other.store.remote(path)))'
                )
            },
        ),
    ),
    "_event_loop": (
        Applied(
            "hangs/sync_get_in_async_method",
            "await the ObjectRef (await ref) instead of ray.get",
            {"ray.get(me.figures.remote())": "await me.figures.remote()"},
        ),
        Applied(
            "hangs/event_set_on_own_loop",
            "await there (asyncio.Event",
            {
                "threading.Event()": "asyncio.Event()",
                "        self.counted.wait()": "        await self.counted.wait()",
            },
        ),
    ),
    "_async_slots": (
        Applied("hangs/async_slots_full", "raise max_concurrency", {"max_concurrency=1": "max_concurrency=2"}),
        Applied("hangs/gate_without_slot", "raise max_concurrency", {"max_concurrency=2": "max_concurrency=3"}),
    ),
    "_own_actor": (
        Applied(
            "self_call",
            "Call Ledger.entry as a plain method (self.entry())",
            {"ray.get([me.entry.remote(0), me.entry.remote(1)])": "[self.entry(0), self.entry(1)]"},
            is_quick=True,
        ),
    ),
    "_queued_calls": (
        Applied("hangs/mutual_get", "raise max_concurrency", {'name="Ann"': 'name="Ann", max_concurrency=2'}),
        Applied(
            "hangs/call_comes_home",
            "return the ObjectRef instead of getting it",
            {
                "        value: int = ray.get(broker.value.remote(bank, lawyer))\n        return value // 2": (
                    "        return broker.value.remote(bank, lawyer)"
                ),
                "print(ray.get(loan))": "print(ray.get(ray.get(loan)) // 2)",
            },
        ),
        Applied(
            "hangs/async_backpressure",
            "Read the stream of Decoder.frames to its end before waiting",
            {
                "    print(ray.get(decoder.close.remote()))\n    print(sum(1 for _ in frames))": (
                    "    print(sum(1 for _ in frames))\n    print(ray.get(decoder.close.remote()))"
                )
            },
        ),
    ),
    "_own_future": (
        Applied("hangs/pool_waits_for_itself", "give the executor more threads", {"max_workers=1": "max_workers=2"}),
        Applied(
            "hangs/result_on_own_loop",
            "await the coroutine or its future (asyncio.wrap_future)",
            {
                "return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()": (
                    "return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.figures(), loop))"
                )
            },
        ),
    ),
    "_threads": (
        Applied(
            "hangs/pool_asks_own_loop",
            "in an async method, await asyncio.to_thread",
            {"return pool.submit(self.ask, loop).result()": "return await asyncio.to_thread(self.ask, loop)"},
        ),
    ),
    "_arguments": (
        Applied(
            "hangs/argument_needs_later_call",
            "Create the argument before submitting the call that needs it",
            {
                "self.clerk.write.remote(ray.get_runtime_context().current_actor)": (
                    "ray.get(self.clerk.write.remote(ray.get_runtime_context().current_actor))"
                )
            },
        ),
    ),
    "_queued_behind": (
        Applied("hangs/either_result_is_late", "let it run: raise max_concurrency", {'"work": 1': '"work": 2'}),
    ),
    "_pass_ref": (
        Applied(
            "hangs/results_of_each_other",
            "Pass the ObjectRef on in one of these calls instead of getting it",
            {
                "    def write(self) -> str:\n        other = self.others.get()\n": (
                    "    def write(self) -> Any:\n        other = self.others.get()\n"
                    '        if self.line == "rose":\n            return [other]\n'
                )
            },
        ),
    ),
    "_without_tasks": (
        Applied(
            "hangs/tasks_await_each_other",
            "Remove one of the waits",
            {"self.side(about_right)": "asyncio.sleep(0.1, result=1)"},
        ),
    ),
}
"""By the rules for deadlocks, with the modules that have them."""

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

APPLIED = tuple(one for some in (*OF_RULES.values(), *OF_KINDS.values()) for one in some)
