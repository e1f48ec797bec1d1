"""The settings of a watch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WatchSettings:
    """The options of ``dstack watch``; times in seconds. ``share`` is the average part of one core for snapshots.

    ``html`` saves a page beside each snapshot. ``profile_hz`` is the rate of the rolling profile, None for no profile.
    ``no_logs`` reads no logs of the processes that findings concern. With ``predict``, snapshots are also taken while
    everything makes progress, and possible deadlocks are reported.
    """

    address: str | None
    directory: str
    every_s: float = 30.0
    stuck_after_s: float = 60.0
    keep: int = 50
    share: float = 0.01
    timeout_s: float = 30.0
    command: str | None = None
    metrics: str | None = None
    as_json: bool = False
    html: bool = False
    profile_hz: float | None = None
    no_logs: bool = False
    predict: bool = False
