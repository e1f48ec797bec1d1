"""Samples all processes of a node for a round of about a second, and answers with the counts of their stacks.

The CPU time of the sampler is bounded: if its samples would take more, it takes fewer, and each counts for several.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import psutil

from dstack.observed.node import Count, RecordedRound, RecordingCoverage, SampledThread
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.process_reader import ProcessReader
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import why_denied
from dstack.probes.node.sampling.process_sampler import ProcessSampler, Samples
from dstack.probes.node.sampling.pyspy_recorder import PySpyRecorder
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.target_process import Problem, TargetProcess
from dstack.probes.node.wire import RecordOptions

MOST_CPU = 0.01
"""The most CPU time of the sampler, as a share of all CPUs of its host."""
LEAST_CPU = 0.02
"""But this share of one CPU is always allowed."""


class Periods:
    """Periods up to ``end``, a ``time.monotonic()``; each has one sample, at a random time.

    So nothing that is periodic itself is seen too often or too rarely.
    """

    def __init__(self, end: float) -> None:
        self._end = end
        self._next = time.monotonic()

    def next(self, period_s: float) -> int | None:
        """Sleep until the next sample is due; returns the number of periods that were missed, None at the end."""
        late_s = time.monotonic() - self._next
        missed = max(0, int(late_s / period_s))
        began = self._next + missed * period_s
        self._next = began + period_s
        if self._next > self._end + period_s / 2:
            _sleep_until(self._end)
            return None
        _sleep_until(began + random.random() * period_s)
        return missed


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


class _Answer:
    """Builds the answer of one round."""

    def __init__(self, reader: ProcessReader) -> None:
        self._table = StackTable(reader.origins, files=None)
        self._threads: dict[SampledThread, int] = {}
        self._counts: list[Count] = []
        self._ranks: dict[str, int | None] = {}
        self._totals = Counter(wanted=0, taken=0, torn=0, cut=0)

    def add(self, process: TargetProcess, samples: Samples, names: Mapping[int, str], rank: int | None) -> None:
        """Add the counts of a process."""
        cwd = proc.working_directory(process.pid)
        totals: Counter[tuple[int, int, bool]] = Counter()
        for (tid, positions, is_running), count in samples.counts.items():
            thread = SampledThread(worker_id=process.worker_id, os_thread_id=tid, thread_name=names.get(tid, ""))
            stack = self._table.add_positions(list(positions), cwd)
            totals[self._threads.setdefault(thread, len(self._threads)), stack, is_running] += count
        self._counts += [Count(thread, stack, n, ran) for (thread, stack, ran), n in totals.items()]
        self._ranks[process.worker_id] = rank
        self._totals.update(wanted=samples.wanted, taken=samples.taken, torn=samples.torn, cut=samples.cut)

    def round(self, *, cpu_s: float, rate_hz: float, seconds: float) -> RecordedRound:
        """The answer."""
        return RecordedRound(
            frames=tuple(self._table.frames),
            stacks=tuple(self._table.stacks),
            threads=tuple(self._threads),
            counts=tuple(self._counts),
            ranks=self._ranks,
            coverage=RecordingCoverage(**self._totals, sampler_cpu_s=cpu_s, lowest_rate_hz=rate_hz),
            seconds=seconds,
        )


class Sampler:
    """The samplers of one node's processes, kept between rounds."""

    def __init__(self, reader: ProcessReader) -> None:
        self._reader = reader
        self._samplers: dict[int, ProcessSampler] = {}
        self._pyspy: dict[int, PySpyRecorder] = {}
        self._problems: dict[int, Problem] = {}
        self._stride = 1

    def round(self, processes: Sequence[TargetProcess], options: RecordOptions) -> RecordedRound:
        """Sample identified processes for some time. What failed is in the ``problems`` of each."""
        began, cpu = time.monotonic(), time.thread_time()
        self._forget({process.pid for process in processes})
        processes = [process for process in processes if self._is_in_python(process)]
        by_memory = [one for one in processes if self._is_readable(one, options)]
        by_pyspy = [one for one in processes if one not in by_memory]
        self._begin_pyspy(by_pyspy, options)
        answer = _Answer(self._reader)
        with contextlib.ExitStack() as stack:
            samplers = [one for process in by_memory if (one := self._opened(process, stack))]
            self._sample(samplers, options, began + options["seconds"])
        for process in by_memory:
            if sampler := self._samplers.get(process.pid):
                answer.add(process, sampler.samples, sampler.names, sampler.rank)
        self._end_pyspy(by_pyspy, options, answer)
        used_s, took_s = time.thread_time() - cpu, time.monotonic() - began
        rate_hz = options["rate_hz"] / self._stride
        self._adapt(used_s / took_s, options)
        return answer.round(cpu_s=used_s, rate_hz=rate_hz, seconds=took_s)

    def close(self) -> None:
        """End everything that runs."""
        self._forget(set())

    def _is_in_python(self, process: TargetProcess) -> bool:
        """Whether it runs Python; notes which other language it runs."""
        language = self._reader.known_process(process).language
        if language:
            reason = f"it runs {language.name}, of which dstack records no stacks"
            process.problems.append(Problem("stacks", reason, "unreadable"))
        return language is None

    # Memory

    def _is_readable(self, process: TargetProcess, options: RecordOptions) -> bool:
        """Whether to read its memory, rather than to run py-spy; notes why that is not possible."""
        if options["native"] or options["gil"]:
            return False
        known = self._reader.known_process(process)
        sampler = self._samplers.get(process.pid)
        if sampler is not None and sampler.known is not known:  # another process, or another program
            self._samplers.pop(process.pid).close()
            self._problems.pop(process.pid, None)
        if reason := known.interpreter.unreadable:
            self._problems[process.pid] = Problem.of_memory(reason, "unreadable")
        return process.pid not in self._problems

    def _opened(self, process: TargetProcess, stack: contextlib.ExitStack) -> ProcessSampler | None:
        """The sampler of a process, ready for a round; None, with a problem, if the process cannot be read."""
        opened = None
        with process.problems_of():
            known = self._reader.known_process(process)
            sampler = self._samplers.get(process.pid) or ProcessSampler(process.pid, known)
            try:
                stack.enter_context(sampler.round())
                opened = self._samplers[process.pid] = sampler
            except PermissionError:
                self._problems[process.pid] = Problem.of_memory(why_denied(process.pid), "permission")
            except OSError as error:
                raise psutil.NoSuchProcess(process.pid) from error
        return opened

    def _sample(self, samplers: Sequence[ProcessSampler], options: RecordOptions, end: float) -> None:
        """Sample at random times, one in each period, so that nothing periodic is seen too often or too rarely."""
        periods = Periods(end)
        while (missed := periods.next(self._stride / options["rate_hz"])) is not None:
            for sampler in samplers:
                sampler.samples.wanted += self._stride * (1 + missed)
                self._take(sampler, self._stride, options)

    def _take(self, sampler: ProcessSampler, weight: int, options: RecordOptions) -> None:
        with contextlib.suppress(OSError, UnreadableMemory):  # it ends, or a thread of it does
            sampler.sample(weight, with_idle=options["idle"])

    def _adapt(self, used: float, options: RecordOptions) -> None:
        """Choose the rate of the next round by the CPU time that this one used, as a share of one CPU."""
        allowed = max(LEAST_CPU, MOST_CPU * (os.cpu_count() or 1))
        most = max(1, int(options["rate_hz"] * options["seconds"]))  # one sample in each round
        self._stride = min(most, max(1, math.ceil(self._stride * used / allowed)))

    # py-spy

    def _begin_pyspy(self, processes: Iterable[TargetProcess], options: RecordOptions) -> None:
        for process in processes:
            with process.problems_of():
                if process.pid not in self._pyspy:
                    self._pyspy[process.pid] = PySpyRecorder(self._reader.require_tool(), process.pid, options)
                self._pyspy[process.pid].begin()

    def _end_pyspy(self, processes: Iterable[TargetProcess], options: RecordOptions, answer: _Answer) -> None:
        for process in processes:
            recorder = self._pyspy.get(process.pid)
            if recorder is None:
                continue
            with process.problems_of():
                found = recorder.collect(is_last=options["is_last"])
                if found is not None:
                    answer.add(process, found, found.names, None)
                if problem := self._problems.get(process.pid):
                    process.problems.append(problem)

    def _forget(self, pids: set[int]) -> None:
        """Drop what belongs to no process in ``pids``."""
        for pid in self._samplers.keys() - pids:
            self._samplers.pop(pid).close()
        for pid in self._pyspy.keys() - pids:
            self._pyspy.pop(pid).close()
        for pid in self._problems.keys() - pids:
            del self._problems[pid]
