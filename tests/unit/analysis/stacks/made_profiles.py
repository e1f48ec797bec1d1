"""Small profiles, made by hand."""

from __future__ import annotations

from collections.abc import Iterable

from dstack.model.profile import JoinedProfile, PathStep, Profile, ProfileCoverage, RootTime

ROOT = "driver train.py"
GET = PathStep("ray.get", state="waits")
SLEEP = PathStep("time.sleep", state="sleeps")
ON_CPU = PathStep("on CPU", state="runs")
QUEUE = PathStep("Reward.score: queued behind", state="queue")
SCORE = PathStep("Reward.score")
"""An execution."""
FILE = "/srv/app/train.py"


def line(number: int, function: str = "main", file: str = FILE) -> PathStep:
    """A frame of the application."""
    return PathStep(function, file, number, function)


def in_turn(*paths: tuple[float, tuple[PathStep, ...]], root: str = ROOT) -> list[RootTime]:
    """Seconds on a path, one after another."""
    times: list[RootTime] = []
    at_us = 0
    for seconds, path in paths:
        lasted_us = round(seconds * 1e6)
        times.append(RootTime(root, path, at_us, lasted_us, lasted_us))
        at_us += lasted_us
    return times


def profile_of(times: Iterable[RootTime], began_at: float = 1_700_000_000.0) -> Profile:
    """A profile of these times, which lasts until their end."""
    empty = Profile(dstack_version="0", address="10.0.0.1:6379", ray_version="2.60.0", began_at=began_at, rate_hz=5)
    joined, times = JoinedProfile(empty), list(times)
    joined.add_times(times)
    seconds = max((one.began_us + one.lasted_us for one in times), default=0) / 1e6
    joined.note(ProfileCoverage(rounds=round(5 * seconds)), ())
    return joined.whole(seconds)
