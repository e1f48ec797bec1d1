"""A search ends at the first hang, and shrinks its setting; the runner is a function of the setting here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from dstack.explore.program_runs import Result, Run
from dstack.explore.search import REPEATS, Search, Stage
from dstack.explore.settings import Amount, Delay, HashSeed, Hint, Setting, settings
from dstack.explore.texts import counted, hang_lines, none_lines


class FakeRuns:
    """Runs whose result is a function of their setting."""

    def __init__(self, judge: Callable[[Setting], Result]) -> None:
        self.judge = judge
        self.settings: list[Setting] = []
        self.cancelled = 0
        self._lock = threading.Lock()

    def __call__(self, setting: Setting, *, history: bool = False) -> Run:
        with self._lock:
            self.settings.append(setting)
            result = self.judge(setting)
        return Run(setting, result, 1.0, exit_code=3 if result == "failed" else None, last_lines=("ValueError: no",))

    def cancel(self) -> None:
        self.cancelled += 1


def delay_of(setting: Setting, method: str = "PushTask") -> int:
    return max((one.most_ms for one in setting.parts if isinstance(one, Delay) and one.method == method), default=0)


def hangs_from(delay_ms: int) -> Callable[[Setting], Result]:
    return lambda setting: "hang" if delay_of(setting) >= delay_ms else "passed"


def test_a_search_ends_at_the_first_hang_and_its_setting_is_shrunk() -> None:
    runs = FakeRuns(hangs_from(200))
    with Search(runs) as search:
        found = search.explore(0, 20)
    assert found.found is not None
    assert [run.result for run in found.runs] == ["passed"] * found.number + ["hang"]
    assert found.shrunk is not None
    assert [type(part) for part in found.shrunk.setting.parts] == [Delay]
    assert 200 <= delay_of(found.shrunk.setting) <= delay_of(found.found.setting)
    assert (found.shrunk.hung, found.shrunk.runs) == (REPEATS, REPEATS)
    first, *_, last = hang_lines(found, ["python", "my app.py"])
    delay = delay_of(found.shrunk.setting)
    assert first == f"It hangs with calls delayed by {delay} ms (PushTask) alone: 5 of 5 runs."
    assert last == f"Repeat it with: dstack explore --repeat 'PushTask={delay}ms' -- python 'my app.py'"


def test_settings_that_hints_lead_to_come_first_and_are_said_to_be_predicted() -> None:
    runs = FakeRuns(hangs_from(3000))
    with Search(
        runs, hints_of=lambda run: (Hint("capacity", resource="CPU", amount=1), Hint("order", gap_s=2))
    ) as search:
        found = search.explore(0, 20, shrink=False)
    assert [str(one) for one in runs.settings] == ["plain", "CPU=1", "PushTask=4000ms"]
    assert next(hang_lines(found, ["app"])).endswith("Found in run 2, as predicted from the plain run: PushTask=4000ms")


def test_a_shrunk_setting_keeps_every_part_that_is_needed() -> None:
    """Random needs: any set of parts may be what hangs together."""
    parts = (Delay("PushTask", 20, 20), Delay("TaskReply", 20, 20), Amount("CPU", 1), HashSeed(4))
    for seed in range(50):
        needed = {part for part in parts if Random(f"{seed}/{part}").random() < 0.5}
        runs = FakeRuns(lambda setting, needed=needed: "hang" if needed <= {*setting.parts} else "passed")  # type: ignore[misc]
        with Search(runs) as search:
            shrunk = search.shrunk(Setting(parts))
        assert needed <= {*shrunk.setting.parts}
        assert {*shrunk.setting.parts} == needed or len(shrunk.setting.parts) == 1


def test_a_hang_that_shows_now_and_then_is_counted() -> None:
    random = Random(3)
    runs = FakeRuns(lambda setting: "hang" if delay_of(setting) and random.random() < 0.6 else "passed")
    with Search(runs) as search:
        shrunk = search.shrunk(Setting((Delay("PushTask", 0, 20),)))
    assert 0 < shrunk.hung < shrunk.runs == REPEATS


@pytest.mark.parametrize("parallel", [1, 3])
def test_without_a_hang_all_runs_are_counted(parallel: int) -> None:
    results: list[Result] = ["failed", "undecided", "infeasible"]
    runs = FakeRuns(lambda setting: results.pop() if setting.parts and results else "passed")
    noted: Counter[Stage] = Counter()
    with Search(runs, parallel=parallel, note=lambda stage, run: noted.update([stage])) as search:
        found = search.explore(7, 10)
    assert found.found is None
    assert noted == {"search": 11}
    assert Counter(map(str, runs.settings)) == Counter(str(settings(7, run)) for run in range(11))
    assert counted(found.runs) == "8 passed, 1 failed, 1 asked for more than there was and 1 had not ended"
    head, unseen, failed, undecided = none_lines(found)
    assert unseen.startswith("No cluster was seen in the plain run: ")
    assert head == f"None of 11 runs hung: {counted(found.runs)}."
    assert failed.startswith("A run failed, which the plain one did not: failed after 1.0 s, ")
    assert failed.endswith(" with exit code 3: ValueError: no")
    assert undecided.startswith("A run was undecided, use a longer --limit: had not ended after 1.0 s, ")


@pytest.mark.parametrize("result", ["failed", "hang"])
def test_a_program_that_fails_or_hangs_by_itself_is_not_run_again(result: Result) -> None:
    runs = FakeRuns(lambda setting: result)
    with Search(runs) as search:
        found = search.explore(0, 5)
    assert len(runs.settings) == 1
    assert (found.found is not None) == (result == "hang")
    if result == "hang":
        assert list(hang_lines(found, ["app"])) == ["It hangs without any change, in the first run."]


def test_runs_that_go_on_are_ended_when_one_hangs() -> None:
    ended = threading.Event()

    class Endless(FakeRuns):
        def __call__(self, setting: Setting, *, history: bool = False) -> Run:
            run = super().__call__(setting)
            if run.result == "passed" and setting.parts:
                assert ended.wait(60), "no one has ended this run"
            return run

        def cancel(self) -> None:
            super().cancel()
            ended.set()

    hanging = settings(0, 2)
    runs = Endless(lambda setting: "hang" if setting == hanging else "passed")
    with Search(runs, parallel=2) as search:
        found = search.explore(0, 9, shrink=False)
    assert found.found is not None
    assert found.found.setting == hanging
    assert runs.cancelled
