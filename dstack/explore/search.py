"""Searches for a setting under which a program hangs, and for the smallest one that suffices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Literal, Protocol

from dstack.explore.program_runs import Run
from dstack.explore.settings import Hint, Setting, hinted_settings, settings, smaller, weaker

Stage = Literal["search", "shrink", "repeat"]
REPEATS = 5
"""How often the result is run again, to say how reliably it hangs."""
TRIES = 2
"""How often a smaller setting is run: it suffices if one run hangs; a shorter delay only if all do."""
HALVINGS = 3
MOST_HINTS = 4
POLL_S = 0.2


class Runs(Protocol):
    """Runs a program under a setting, as :class:`dstack.explore.program_runs.ProgramRuns`."""

    def __call__(self, setting: Setting, *, history: bool = False) -> Run:
        """Run it once."""

    def cancel(self) -> None:
        """End the runs that are going on."""


@dataclass(frozen=True)
class Shrunk:
    """The smallest setting that was found to suffice, and in how many of its last runs it hung."""

    setting: Setting
    hung: int
    runs: int


@dataclass(frozen=True)
class Exploration:
    """The runs of a search in the order of their ends, and the one that hung, if any.

    ``hinted`` are the settings that hints have led to.
    """

    runs: tuple[Run, ...]
    found: Run | None = None
    shrunk: Shrunk | None = None
    hinted: frozenset[Setting] = frozenset()

    @property
    def has_cluster(self) -> bool:
        """Whether dstack has seen a cluster in the plain run, or in one that did not end; true without a plain run."""
        return bool(self.runs[0].setting.parts or self.runs[0].capacity or any(run.analysed for run in self.runs))

    @property
    def number(self) -> int:
        """The number of the run that hung; 0 is the plain one."""
        return self.runs.index(self.found) if self.found else -1


def predicted(run: Run) -> tuple[Hint, ...]:
    """Hints from what dstack predicts of a run that did not hang; none without its history of tasks."""
    if run.analysed is None:
        return ()
    prediction = run.analysed.prediction
    gaps = (Hint("order", gap_s=round(one.gap_s, 1)) for one in prediction.possible if one.gap_s is not None)
    less = ((need, math.ceil(need.minimum) - 1) for need in prediction.needs)
    amounts = (
        Hint("capacity", resource=need.resource, amount=amount)
        for need, amount in less
        if amount >= max(need.held, need.needed, 1) and amount != need.present
    )
    return tuple(dict.fromkeys((*gaps, *amounts)))[:MOST_HINTS]


class Search:
    """Runs a program again and again, at most ``parallel`` runs at once; a context manager.

    ``note`` is called in the thread of the caller, with each run that has ended and what it was for. ``hints_of`` says
    where a hang is likely, by the plain run; by default that is what dstack predicts from it. When the context ends, no
    run goes on.
    """

    def __init__(
        self,
        runs: Runs,
        *,
        parallel: int = 1,
        note: Callable[[Stage, Run], None] = lambda stage, run: None,
        hints_of: Callable[[Run], Sequence[Hint]] | None = None,
    ) -> None:
        self._runs = runs
        self._parallel = parallel
        self._note = note
        self._hints_of = hints_of or predicted
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="dstack-run")
        self._pending: set[Future[Run]] = set()

    def __enter__(self) -> Search:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end_pending()
        self._pool.shutdown()

    def explore(self, seed: int, count: int, *, may_kill: bool = False, shrink: bool = True) -> Exploration:
        """Search until a run hangs or ``count`` runs beyond the plain one have passed.

        A program that fails or hangs in its plain run is not run again.
        """
        plain = next(self._ended([Setting()], "search", history=True))
        if plain.result in ("hang", "failed", "cancelled"):
            return Exploration((plain,), plain if plain.result == "hang" else None)
        hints = self._hints_of(plain)
        hinted = frozenset(hinted_settings(hints))
        chosen = [settings(seed, run, hints, plain.capacity, may_kill=may_kill) for run in range(1, count + 1)]
        done = [plain]
        for run in self._ended(chosen, "search"):
            done.append(run)
            if run.result == "hang":
                self._end_pending()
                return Exploration(tuple(done), run, self.shrunk(run.setting) if shrink else None, hinted)
        return Exploration(tuple(done), hinted=hinted)

    def repeat(self, setting: Setting, count: int = REPEATS) -> tuple[Run, ...]:
        """Run one setting several times."""
        return tuple(self._ended([setting] * count, "repeat"))

    def shrunk(self, setting: Setting) -> Shrunk:
        """Leave out parts of a setting and shorten its delays as long as the program still hangs."""
        while (fewer := next((one for one in smaller(setting) if self._hangs(one)), None)) is not None:
            setting = fewer
        for _ in range(HALVINGS):
            half = next((one for one in weaker(setting) if self._always_hangs(one)), None)
            if half is None:
                break
            setting = half
        repeated = self.repeat(setting)
        return Shrunk(setting, sum(run.result == "hang" for run in repeated), len(repeated))

    def _hangs(self, setting: Setting) -> bool:
        return any(run.result == "hang" for run in self._ended([setting] * TRIES, "shrink"))

    def _always_hangs(self, setting: Setting) -> bool:
        return all(run.result == "hang" for run in self._ended([setting] * TRIES, "shrink"))

    def _ended(self, chosen: Sequence[Setting], stage: Stage, *, history: bool = False) -> Iterator[Run]:
        """The runs of these settings as they end; those that the caller does not wait for are ended."""
        waiting = iter(chosen)
        try:
            while True:
                room = self._parallel - len(self._pending)
                self._pending |= {self._pool.submit(self._runs, one, history=history) for one in islice(waiting, room)}
                if not self._pending:
                    return
                done, self._pending = wait(self._pending, POLL_S, FIRST_COMPLETED)
                for run in (future.result() for future in done):
                    self._note(stage, run)
                    yield run
        finally:
            self._end_pending()

    def _end_pending(self) -> None:
        while self._pending:
            self._runs.cancel()
            self._pending = wait(self._pending, POLL_S).not_done
