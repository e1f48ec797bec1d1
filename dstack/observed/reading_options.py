"""How the user wants processes to be read. Nothing else is here: commands make it before they load anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReadingOptions:
    """How the user wants processes to be read.

    ``native`` adds C frames (pauses each target over 100 ms), ``locals`` keeps the values of locals, ``pause`` stops
    running targets for exact stacks of running threads. ``logs`` says of which processes the ends of logs are read: of
    those that findings concern, of all, or of none. Without ``native`` or ``pause`` no process is paused, traced or
    signalled.
    """

    native: bool = False
    locals: bool = False
    pause: bool = False
    logs: Literal["concerned", "all", "none"] = "concerned"

    @property
    def pauses(self) -> bool:
        """Whether a process may be paused."""
        return self.native or self.pause
