"""A checked property of a machine or cluster, for ``dstack doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "limit", "failure"]


@dataclass(frozen=True)
class Check:
    """What was found, and what to do if it is a limit or a failure."""

    level: Level
    text: str
    remedy: str | None = None
