"""Settings repeat a run: they are derived from a seed, written in one line, and made smaller part by part."""

from __future__ import annotations

import json

import pytest

from dstack.errors import UsageError
from dstack.explore.settings import (
    Amount,
    Delay,
    HashSeed,
    Hint,
    Kills,
    Setting,
    Stops,
    settings,
    smaller,
    weaker,
)
from dstack.probes.connection.cluster_variables import DELAYED_METHODS

EACH = Setting((Delay("PushTask", 0, 60), Amount("CPU", 3), HashSeed(7), Stops(200, 5), Kills(1, 4)))
SEEDS, RUNS = range(20), range(40)


def chosen(seed: int, capacity: dict[str, float]) -> list[Setting]:
    return [settings(seed, run, capacity=capacity, may_kill=True) for run in RUNS]


def test_a_setting_is_one_line_that_gives_it_again() -> None:
    assert str(EACH) == "PushTask=0-60ms CPU=3 PYTHONHASHSEED=7 stop=200ms#5 kill=1#4"
    assert Setting.parsed(str(EACH)) == EACH
    assert Setting.parsed("plain") == Setting.parsed("") == Setting()
    every = [one for seed in SEEDS for one in chosen(seed, {"CPU": 4, "GPU": 2, "license": 3})]
    assert [Setting.parsed(str(one)) for one in every] == every


@pytest.mark.parametrize(
    "text", ["PushTask", "PushTask=60", "PushTask=9-3ms#1", "PushTask=9-3ms", "stop=3", "=3", "CPU=x"]
)
def test_a_line_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a part of a setting"):
        Setting.parsed(text)


def test_a_setting_is_the_environment_of_its_run() -> None:
    environment = EACH.environment
    assert environment["RAY_testing_asio_delay_us"] == "CoreWorkerService.grpc_server.PushTask=0:60000"
    assert json.loads(environment["RAY_OVERRIDE_RESOURCES"]) == {"CPU": 3}
    assert environment["PYTHONHASHSEED"] == "7"
    assert Setting().environment == {}
    assert Setting.parsed("Own.grpc_server.Method=5ms").environment == {
        "RAY_testing_asio_delay_us": "Own.grpc_server.Method=5000:5000"
    }


def test_the_first_run_is_plain_and_each_run_repeats_by_its_seed() -> None:
    assert all(settings(seed, 0).parts == () for seed in SEEDS)
    assert all(chosen(seed, {"CPU": 2}) == chosen(seed, {"CPU": 2}) for seed in SEEDS)
    assert len({str(settings(seed, 1)) for seed in SEEDS}) > 5
    assert all(one.parts for seed in SEEDS for one in chosen(seed, {"CPU": 2})[1:])


def test_a_search_varies_every_method_and_every_resource() -> None:
    capacity = {"CPU": 64.0, "GPU": 4.0, "license": 2.0, "node:127.0.0.1": 1.0}
    parts = [part for seed in SEEDS for one in chosen(seed, capacity) for part in one.parts]
    assert {part.method for part in parts if isinstance(part, Delay)} == DELAYED_METHODS.keys()
    amounts = {(part.resource, part.amount) for part in parts if isinstance(part, Amount)}
    assert {name for name, _ in amounts} >= {"CPU", "GPU", "license"}
    assert {amount for name, amount in amounts if name == "CPU"} == {1, 2, 3, 32, 63, 65}
    assert {amount for name, amount in amounts if name == "license"} == {1, 3}
    assert any(isinstance(part, Stops) for part in parts)
    assert any(isinstance(part, Kills) for part in parts)


def test_workers_are_killed_only_if_asked() -> None:
    some = [settings(seed, run) for seed in SEEDS for run in RUNS]
    assert not any(isinstance(part, Kills) for one in some for part in one.parts)


def test_hints_come_first() -> None:
    hints = (Hint("order", gap_s=0.9), Hint("capacity", resource="CPU", amount=2))
    assert [str(settings(1, run, hints)) for run in range(4)] == [
        "plain",
        "PushTask=1800ms",
        "PushTask=0-1800ms",
        "CPU=2",
    ]
    assert settings(1, 4, hints) != settings(1, 4)


def test_smaller_settings_are_each_part_alone_then_all_but_one() -> None:
    two = Setting(EACH.parts[:2])
    assert list(smaller(two)) == [Setting((part,)) for part in two.parts]
    assert list(smaller(EACH))[:5] == [Setting((part,)) for part in EACH.parts]
    assert [len(one.parts) for one in smaller(EACH)] == [1] * 5 + [4] * 5
    assert list(smaller(Setting())) == list(smaller(Setting(EACH.parts[:1]))) == []


def test_weaker_settings_have_one_delay_half_as_long() -> None:
    setting = Setting((Delay("PushTask", 100, 300), Delay("TaskReply", 0, 20), Amount("CPU", 3)))
    assert [str(one) for one in weaker(setting)] == ["PushTask=50-150ms TaskReply=0-20ms CPU=3"]
    delayed, stopped = (
        "with calls delayed by 0-60 ms (PushTask), CPU set to 3, PYTHONHASHSEED 7",
        "workers stopped for up to 200 ms",
    )
    assert EACH.in_words() == f"{delayed}, {stopped} and 1 killed worker"
