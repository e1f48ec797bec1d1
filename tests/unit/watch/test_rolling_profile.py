"""The rolling profile of a watch, with profilers that do what a test says: its files, their bounds, and failures."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from dstack.errors import ClusterError
from dstack.files.sampled_file import PROFILES
from dstack.model.profile import Profile
from dstack.watch import rolling_profile
from dstack.watch.rolling_profile import KEPT, RollingProfile, pauses
from tests.processes import wait_until
from tests.unit.analysis.stacks.made_profiles import SLEEP, in_turn, profile_of
from tests.unit.watch.test_loop import SOON_S, RecordedEvents, full_disk

ADDRESS = "10.0.0.1:6379"
BEGAN_AT = 1_700_000_000.0


def profile(number: int = 0, seconds: float = 2.0) -> Profile:
    return profile_of(in_turn((seconds, (SLEEP,))), BEGAN_AT + 600 * number)


class FakeRecorder:
    """Takes these steps, each with a note of progress, and has then this profile; or has this error at once."""

    def __init__(self, result: Profile | Exception, *steps: Callable[[], object]) -> None:
        self.result = result
        self.steps = steps
        self.has_begun = False
        self.stops = 0

    def record(self, progress: Callable[[str], None]) -> Profile:
        progress("starting")
        if isinstance(self.result, Exception):
            raise self.result
        self.has_begun = True
        progress("recorded")
        for step in self.steps:
            step()
            progress("recorded")
        return self.result

    def so_far(self) -> Profile:
        assert isinstance(self.result, Profile)
        return replace(self.result, duration_s=1.0)

    def stop(self) -> None:
        self.stops += 1


class Rolling:
    """A rolling profile in a directory, with its events, and the profilers that it gets one after another."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events = RecordedEvents()
        self.address: str | None = ADDRESS
        self.profiled: list[str] = []
        self.next: list[FakeRecorder] = []
        self.rolling = RollingProfile(directory, 1.0, lambda: self.address, self.events)

    def new_profile(self, address: str, *_: object) -> FakeRecorder:
        self.profiled.append(address)
        return self.next.pop(0)

    def run(self, *recorders: FakeRecorder) -> list[float]:
        """Use these profilers one after another; the pauses after them."""
        self.next += recorders
        return [self.rolling._profile(ADDRESS) for _ in recorders]

    def texts(self, event: str) -> list[str]:
        return [text for name, text in self.events.recorded if name == event]

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rolling:
    one = Rolling(tmp_path)
    monkeypatch.setattr(rolling_profile, "new_profile", one.new_profile)
    return one


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each profile has its whole time at once."""
    monkeypatch.setattr(rolling_profile, "PERIOD_S", 0.0)
    monkeypatch.setattr(rolling_profile, "STEADY_S", 0.0)


@pytest.mark.usefixtures("whole")
def test_each_period_has_a_file_and_the_newest_are_kept(made: Rolling) -> None:
    others = ["dstack-20231114-221320.json.gz", "profile-mine.json.gz"]
    for name in others:
        (made.directory / name).touch()

    waits = made.run(*(FakeRecorder(profile(number)) for number in range(KEPT + 3)))

    files = made.files[1:-1]
    assert waits == [0.0] * (KEPT + 3)
    assert [made.files[0], made.files[-1]] == others
    assert len(files) == KEPT
    assert (files[0], files[-1]) == ("profile-20231114-224320.json.gz", "profile-20231115-003320.json.gz")
    assert PROFILES.load(made.directory / files[-1]) == profile(KEPT + 2)
    assert (made.directory / files[0]).stat().st_mode & 0o777 == 0o600
    assert made.profiled == [ADDRESS] * (KEPT + 3)
    assert not made.events.recorded


@pytest.mark.usefixtures("whole")
def test_what_was_sampled_until_now_is_written_when_it_is_wanted(made: Rolling) -> None:
    seen: list[float] = []

    def look() -> None:
        (path,) = made.directory.iterdir()
        seen.append(PROFILES.load(path).duration_s)

    made.run(FakeRecorder(profile(), made.rolling.save_soon, look))
    look()

    assert seen == [1.0, 2.0]
    assert made.files == ["profile-20231114-221320.json.gz"]


@pytest.mark.usefixtures("whole")
def test_a_profile_without_a_driver_is_not_written(made: Rolling) -> None:
    made.run(FakeRecorder(profile_of(())))

    assert made.files == []
    assert not made.rolling.has_saved


def test_failures_are_said_once_and_tried_again_after_longer_pauses(
    made: Rolling, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = made.run(*(FakeRecorder(ClusterError("The GCS does not answer.")) for _ in range(8)))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60] == list(islice(pauses(), 8))

    monkeypatch.setattr(rolling_profile, "PERIOD_S", 0.0)
    made.run(FakeRecorder(profile()))
    assert made.texts("profile") == ["interrupted: The GCS does not answer. Retrying, at least every 60 s"]

    monkeypatch.setattr(rolling_profile, "STEADY_S", 0.0)
    made.run(FakeRecorder(profile()))
    assert made.texts("profile")[1:] == ["continued 0.0 s after its failure"]
    assert made.run(FakeRecorder(OSError(errno.EMFILE, "Too many open files"))) == [1]
    assert made.texts("profile")[2:] == [
        "interrupted: dstack reached the limit of open files. Retrying, at least every 60 s"
    ]


def test_profiles_that_end_early_are_said_once_and_leave_older_files_alone(
    made: Rolling, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = made.run(*(FakeRecorder(profile(number)) for number in range(4)), FakeRecorder(profile_of(())))
    monkeypatch.setattr(rolling_profile, "STEADY_S", 0.0)
    made.run(FakeRecorder(profile(4)), FakeRecorder(profile(5)))

    assert waits == [1, 2, 4, 8, 16]
    assert made.texts("profile")[0] == "interrupted: The profile ended after 0.0 s. Retrying, at least every 60 s"
    assert [PROFILES.load(path) for path in sorted(made.directory.iterdir())] == [profile(0), profile(4), profile(5)]


@pytest.mark.usefixtures("whole")
def test_a_full_disk_is_said_and_ends_nothing(made: Rolling) -> None:
    with full_disk():
        assert made.run(FakeRecorder(profile())) == [0.0]

    (text,) = made.texts("unsaved")
    assert text.endswith("No space left on device. The profile is not saved.")
    made.run(FakeRecorder(profile()))
    assert len(made.files) == 1


# With its thread


class HangingRecorder(FakeRecorder):
    """Records until it was stopped ``times`` times."""

    def __init__(self, result: Profile, times: int = 1) -> None:
        super().__init__(result, lambda: self._ended.wait(SOON_S))
        self._ended = threading.Event()
        self._times = times

    def stop(self) -> None:
        super().stop()
        if self.stops == self._times:
            self._ended.set()


def begun(made: Rolling, count: int) -> None:
    wait_until(lambda: len(made.profiled) == count, deadline_s=SOON_S, what=lambda: f"{count} profiles")


@pytest.mark.parametrize("times", [1, 2])
def test_the_end_writes_the_current_file_also_if_the_profiler_has_to_be_killed(made: Rolling, times: int) -> None:
    made.next.append(recorder := HangingRecorder(profile(), times))
    made.rolling.start()
    wait_until(lambda: recorder.has_begun, deadline_s=SOON_S, what=lambda: "a profile")

    made.rolling.stop()

    assert recorder.stops == times
    wait_until(lambda: made.files, deadline_s=SOON_S, what=lambda: "a file")
    assert made.rolling.has_saved
    assert not made.events.recorded


def test_a_lost_cluster_ends_the_file_and_another_one_begins_when_it_is_back(
    made: Rolling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_profile, "TURN_S", 0.01)
    made.next += [HangingRecorder(profile()), HangingRecorder(profile(1))]
    made.rolling.start()
    begun(made, 1)

    made.address = None
    made.rolling.interrupt()
    wait_until(lambda: made.files, deadline_s=SOON_S, what=lambda: "a file")
    assert made.profiled == [ADDRESS]

    made.address = "10.0.0.2:6379"
    begun(made, 2)
    made.rolling.stop()

    assert made.profiled == [ADDRESS, "10.0.0.2:6379"]
    assert not made.events.recorded


def test_a_cluster_that_is_lost_while_a_profile_begins_is_not_profiled(made: Rolling) -> None:
    made.address = None
    recorder = FakeRecorder(ClusterError("The recording was ended before it began."))

    assert made.run(recorder) == [0.0]
    assert recorder.stops == 1
    assert not made.events.recorded
