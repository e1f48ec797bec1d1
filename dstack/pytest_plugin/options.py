"""The plugin's settings: options, ini options and the marker; and what it attaches to sessions and tests."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pytest

if TYPE_CHECKING:
    from dstack.model.vertex_keys import Key
    from dstack.pytest_plugin.prediction import Predictor

Check = Literal["off", "end", "module"]
FailOn = Literal["timeout", "stuck"]
Predict = Literal["off", "warn", "error"]
PREDICTS: tuple[Predict, ...] = ("off", "warn", "error")
CHECKS: tuple[Check, ...] = ("off", "end", "module")
FAIL_ON: tuple[FailOn, ...] = ("timeout", "stuck")
PREDICT = "predict"
_OPTIONS = {
    "timeout": (
        "SECONDS",
        "After this time, take a snapshot of the test's Ray cluster and fail the test. 0: no limit.",
    ),
    "fail-on": (
        "|".join(FAIL_ON),
        "Which tests --dstack-timeout fails: all (timeout, the default), or only deadlocks and hangs (stuck).",
    ),
    "check": (
        "|".join(CHECKS),
        "After each test (end) or module, fail the test if it leaves a deadlock or hang in the cluster.",
    ),
    "profile": (
        "SECONDS",
        "Profile the cluster of a test that takes longer, from then on, and print where its time goes.",
    ),
    PREDICT: (
        "warn|error",
        "Predict deadlocks that another order of each test's calls could reach: list them, or fail the test (error).",
    ),
    "explore": (
        "N",
        "Run each test up to N times on other schedules, in processes and on clusters of its own, until it hangs.",
    ),
    "dir": ("DIR", "Save the snapshots of hanging tests in this directory, for: dstack show FILE."),
    "address": ("HOST:PORT", "The cluster to inspect. [default: the one that the test is connected to]"),
}


@dataclass(frozen=True)
class PluginSettings:
    """The settings of a session, and what its tests share.

    Without ``timeout_s`` only marked tests are watched; without ``directory`` no snapshot is saved. Tests that take
    longer than ``profile_s`` are profiled. ``explore`` is the number of runs on other schedules, 0 to run tests here.
    With ``predicts``, deadlocks are predicted from the calls of each test, and fail it if that is ``error``;
    ``predictor`` has those of the session. ``reported`` has the members of the findings for which a test has failed
    already.
    """

    timeout_s: float | None = None
    profile_s: float | None = None
    explore: int = 0
    fail_on: FailOn = "timeout"
    check: Check = "off"
    predicts: Predict = "off"
    predictor: Predictor | None = None
    directory: Path | None = None
    address: str | None = None
    is_debugging: threading.Event = field(default_factory=threading.Event)
    reported: set[Key] = field(default_factory=set)

    @property
    def is_used(self) -> bool:
        """Whether the plugin may inspect tests that are not marked."""
        is_timed = self.timeout_s is not None or self.profile_s is not None
        return is_timed or self.check != "off" or self.predicts != "off" or self.explore > 0


def add_options(parser: pytest.Parser) -> None:
    """Adds each option as ``--dstack-NAME``, and as ``dstack_NAME`` in the ini file."""
    group = parser.getgroup("dstack", "hangs on Ray clusters")
    for name, (metavar, text) in _OPTIONS.items():
        if name == PREDICT:
            group.addoption(f"--dstack-{name}", metavar=metavar, help=text, nargs="?", const="warn")
        else:
            group.addoption(f"--dstack-{name}", metavar=metavar, help=text)
        parser.addini(f"dstack_{name.replace('-', '_')}", text)


def settings_of(config: pytest.Config) -> PluginSettings:
    """Reads the settings of a session. Raises :class:`pytest.UsageError` if they are invalid."""
    check, fail_on = _given(config, "check") or "off", _given(config, "fail_on") or "timeout"
    if check not in CHECKS:
        raise pytest.UsageError(f"--dstack-check must be one of {', '.join(CHECKS)}, not {check!r}.")
    if fail_on not in FAIL_ON:
        raise pytest.UsageError(f"--dstack-fail-on must be one of {', '.join(FAIL_ON)}, not {fail_on!r}.")
    predicts = _given(config, PREDICT) or "off"
    if predicts not in PREDICTS:
        raise pytest.UsageError(
            f"--dstack-predict must be warn or error, not {predicts!r}: write --dstack-predict=warn."
        )
    timeout, profile, directory = (_given(config, name) for name in ("timeout", "profile", "dir"))
    return PluginSettings(
        timeout_s=_seconds(timeout, "--dstack-timeout") if timeout else None,
        profile_s=_seconds(profile, "--dstack-profile") if profile else None,
        explore=_count(_given(config, "explore") or "0"),
        fail_on=fail_on,
        check=check,
        predicts=predicts,
        predictor=_predictor(config) if predicts != "off" else None,
        directory=_created(config.invocation_params.dir / directory) if directory else None,
        address=_given(config, "address"),
    )


def _predictor(config: pytest.Config) -> Predictor:
    """The predictor of a session; clusters that start from now on report their calls soon."""
    from dstack.pytest_plugin.prediction import REPORTS, Predictor

    os.environ.setdefault(*REPORTS)
    return Predictor(_given(config, "address"))


def marked_timeout_s(item: pytest.Item, settings: PluginSettings) -> float | None:
    """The timeout of a test in seconds, by its marker or by default; None for no limit."""
    marker = item.get_closest_marker("dstack")
    if marker is None:
        return settings.timeout_s
    if marker.args or marker.kwargs.keys() != {"timeout"}:
        raise pytest.UsageError("The dstack marker takes only a timeout in seconds: @pytest.mark.dstack(timeout=60)")
    return _seconds(marker.kwargs["timeout"], "timeout of @pytest.mark.dstack")


def _given(config: pytest.Config, name: str) -> str | None:
    """The option's value on the command line, else in the ini file."""
    given = config.getoption(f"dstack_{name}") or config.getini(f"dstack_{name}")
    return str(given) if given else None


def _seconds(value: object, what: str) -> float | None:
    try:
        seconds = float(cast(str, value))
    except (TypeError, ValueError):
        seconds = math.nan
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise pytest.UsageError(f"The {what} must be a number of seconds, not {value!r}.")
    return seconds or None


def _count(value: str) -> int:
    if not value.isdigit():
        raise pytest.UsageError(f"The --dstack-explore must be a number of runs, not {value!r}.")
    return int(value)


def _created(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise pytest.UsageError(
            f"Cannot create --dstack-dir {directory}: {error.strerror}. Give another directory."
        ) from error
    return directory


SETTINGS = pytest.StashKey[PluginSettings]()
BEGAN = pytest.StashKey[float]()
BEGAN_AT = pytest.StashKey[float]()
TIMEOUT_S = pytest.StashKey[float | None]()
IS_LAST_OF_MODULE = pytest.StashKey[bool]()
SECTION = "dstack"
"""The name of the plugin's sections in reports."""
