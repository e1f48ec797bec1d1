"""Healthy programs under load and faults: every alarm is false, unless a fault has made it true.

The programs in `benchmarks/workloads` progress for ever, also when a process is killed: Ray restarts actors and retries
tasks, and a round that fails is followed by another. A few at a time share a cluster of several hosts in network
namespaces, while workers, hosts and the GCS are killed at random, and come back (`faults.py`). Meanwhile one long
session takes snapshots (`session.py`), and `dstack check` runs on one host after another (`checks.py`).

The exit code is 1 if there was a false alarm (`alarms.py` says which are), a check outlasted its timeout, a snapshot or
check failed without a reason in the faults, the session's memory, descriptors or threads have grown, or dstack left a
process, a file, an actor or a job behind. `stalled` is counted, but allowed, because it claims no proof.

    python -m benchmarks.soak [HOURS] [--workloads NAME,...] [--together N] [--hosts N]
                              [--faults KIND,... | none] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.soak import ALARMS, SHOWN
from benchmarks.soak.alarms import Alarms
from benchmarks.soak.checks import Check, Checks
from benchmarks.soak.drivers import Drivers, chosen
from benchmarks.soak.faults import EVERY_S, Faults
from benchmarks.soak.leftovers import leftovers
from benchmarks.soak.session_reader import SessionReader
from benchmarks.soak.tally import Outcome
from tests.hosts import Hosts

TURN_S = 0.25
READY_S = 300.0
"""Deadline for the first workloads to start."""
SESSION_TIMEOUT_S = 30.0
SESSION_PAUSE_S = 1.0
STATUS_EVERY_S = 60.0
HEALED_S = 120.0
"""Deadline for the cluster to be whole at the end, when nothing is killed any more."""


class Clock:
    """Prints lines with the time since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._began) / 60

    def say(self, text: str) -> None:
        minutes, seconds = divmod(time.monotonic() - self._began, 60)
        print(f"[{minutes:3.0f}:{seconds:04.1f}] {text}", flush=True)


class Soak:
    """One soak of workloads that run; ``outcome`` is what was found so far."""

    def __init__(self, hosts: Hosts, drivers: Drivers, faults: Faults, session: SessionReader, keep: Path) -> None:
        self._hosts = hosts
        self._keep = keep
        self.drivers = drivers
        self.faults = faults
        self.session = session
        self.say = faults.say
        self.outcome = Outcome()
        self._alarms = Alarms(drivers, faults)
        self._checks = Checks(hosts)

    def run(self, seconds: float) -> None:
        """Read and kill for ``seconds``; then end dstack, and look for what it left."""
        self._checks.start()
        try:
            self._turn_until(time.monotonic() + seconds)
        finally:
            self._checks.end()
        self._heal()
        self._end()

    def _turn_until(self, end: float) -> None:
        status_at = time.monotonic() + STATUS_EVERY_S
        while time.monotonic() < end and not self.session.has_ended:
            self.faults.step()
            self._turn()
            time.sleep(TURN_S)
            if time.monotonic() > status_at:
                status_at += STATUS_EVERY_S
                self._say_status()
        if self.session.has_ended:
            self.outcome.broken.append("the session has ended by itself")

    def _turn(self) -> None:
        self.drivers.step(self._alarms.open_jobs)
        for line in self.session.step():
            self._note_snapshot(line)
        while not self._checks.results.empty():
            self._note_check(self._checks.results.get())
        for alarm in self._alarms.judge():
            self.say(f"judged {alarm.verdict}: {alarm.kind}: {alarm.reason}")

    def _say_status(self) -> None:
        session, checks = self.outcome.session, self.outcome.checks
        running = ", ".join(f"{driver.name} {driver.rounds}" for driver in self.drivers.running)
        self.say(
            f"{session.counts['read']} snapshots, the last in {(session.seconds or [0.0])[-1]:.1f} s; "
            f"{checks.counts['read']} checks; {len(self._hosts.nodes)} hosts; load {os.getloadavg()[0]:.0f}; "
            f"rounds: {running}"
        )

    def _heal(self) -> None:
        """Wait until the cluster is whole again, with the session still reading."""
        deadline = time.monotonic() + HEALED_S
        self.faults.mend(at_once=True)
        while not self.faults.is_over and time.monotonic() < deadline and not self.session.has_ended:
            self.faults.mend(at_once=True)
            self._turn()
            time.sleep(TURN_S)

    def _end(self) -> None:
        """End the session, then judge; the workloads still run, so that leftovers of dstack stand out."""
        if not self.session.has_ended:
            self.outcome.quit_s = self.session.end()
        for line in self.session.step():
            self._note_snapshot(line)
        self.outcome.left = leftovers(self._hosts)
        self.drivers.step(self._alarms.open_jobs)
        self.drivers.count_running()
        self._alarms.judge(at_end=True)
        self.outcome.alarms = self._alarms.all

    def _note_snapshot(self, line: dict[str, Any]) -> None:
        if "printed" in line:
            self.say(f"the session printed: {line['printed']}")
            return
        began, ended = line["began"], line["began"] + line["took_s"]
        if "error" in line:
            if line["error"] == "Cancelled.":
                return  # at its end
            is_explained = self.faults.gcs_was_away(began, ended)
            self.outcome.session.add_error(line["error"], is_explained=is_explained)
            self.say(f"no snapshot{'' if is_explained else ', and no fault explains it'}: {line['error'][:300]}")
            return
        self.outcome.session.add(line["document"], line["took_s"])
        path = None
        if line["saved"]:
            path, report = self.session.kept(line["saved"])
            self._show(line["document"], report, path)
        self._alarms.add(line["document"]["findings"], began, "the session", str(path) if path else None)

    def _show(self, document: dict[str, Any], report: str, path: Path) -> None:
        kinds = sorted({finding["kind"] for finding in document["findings"]} & {*SHOWN})
        if not {*kinds} & {*ALARMS}:
            self.say(f"{', '.join(kinds)}: {document['findings'][0]['summary'][:200]} (dstack show {path})")
            return
        names = {self.drivers.names_of(finding["jobs"]) for finding in document["findings"]}
        self.say(f"ALARM {', '.join(kinds)} in {', '.join(sorted(names))}; saved, see: dstack show {path}\n{report}")

    def _note_check(self, check: Check) -> None:
        self.outcome.add_check(check)
        ended = check.began + check.took_s
        if check.is_late:
            self.say(f"LATE check on host {check.host}: {check.took_s:.1f} s with a timeout of {check.timeout_s:g} s")
        if check.document is None:
            is_explained = check.host_killed or self.faults.gcs_was_away(check.began, ended)
            error = f"exit code {check.code}: {check.error[-300:]}"
            self.outcome.checks.add_error(error, is_explained=is_explained)
            if not is_explained:
                self.say(f"check on host {check.host} without an answer, and no fault explains it: {error}")
            return
        self.outcome.checks.add(check.document, check.took_s)
        found = self._alarms.add(check.document["findings"], check.began, f"a check on host {check.host}", None)
        for alarm in found:
            path = self._keep / f"check-{int(time.time() * 1000)}.json"
            path.write_text(json.dumps(check.document, indent=1))
            alarm.evidence.append(str(path))
            self.say(f"ALARM {alarm.kind} by a check on host {check.host}: {alarm.summary}; saved in {path}")


def main() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    options = parsed()
    if reason := Hosts.unavailable():
        sys.exit(f"The soak needs hosts in network namespaces, which cannot be made here: {reason}.")
    names, left_out = chosen(options.workloads.split(",") if options.workloads else [])
    print(f"workloads: {', '.join(names)}")
    if left_out:
        print(f"LEFT OUT, as their packages are not installed (make .venv-libraries/.ready): {', '.join(left_out)}")
    has_redis = Hosts.has_redis()
    if not has_redis and "gcs" in options.faults:
        options.faults.remove("gcs")
        print("LEFT OUT: the GCS is never killed, as there is no redis-server (apt-get install redis-server)")
    print(f"faults: {', '.join(options.faults) or 'none'}; seed {options.seed}; alarms are kept in {options.keep}")
    random.seed(options.seed)
    options.keep.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    with ExitStack() as stack:
        racks = {number: {f"rack{number}": 1.0} for number in range(2, options.hosts + 1)}
        hosts = stack.enter_context(Hosts(options.hosts, redis=has_redis, custom=racks))
        drivers = stack.enter_context(Drivers(hosts, names, options.together, clock.say))
        await_ready(drivers)
        clock.say(f"running: {', '.join(driver.name for driver in drivers.running)}")
        faults = Faults(hosts, options.faults, clock.say)
        session = stack.enter_context(SessionReader(hosts, SESSION_TIMEOUT_S, SESSION_PAUSE_S, options.keep))
        soak = Soak(hosts, drivers, faults, session, options.keep)
        try:
            soak.run(3600 * options.hours)
        except Exception as error:  # what was found before is printed all the same
            traceback.print_exc()
            soak.outcome.broken.append(f"the soak itself failed: {type(error).__name__}")
        failures = soak.outcome.failures(session.resources, faults.counts["gcs"])
        print(f"\n{clock.minutes:.1f} minutes", *soak.outcome.lines(drivers, faults, session.resources), sep="\n")
        print(f"\nFAILED: {'; '.join(failures)}" if failures else "\npassed", flush=True)
    sys.exit(1 if failures else 0)


def await_ready(drivers: Drivers) -> None:
    """Return once the first workloads are ready, or at a deadline: faults may begin."""
    deadline = time.monotonic() + READY_S
    while not drivers.are_ready() and time.monotonic() < deadline:
        drivers.step(set())
        time.sleep(TURN_S)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hours", type=float, nargs="?", default=1.0, metavar="HOURS", help="duration (1)")
    parser.add_argument("--workloads", default="", metavar="NAME,...", help="only these")
    parser.add_argument("--together", type=int, default=4, metavar="N", help="number of workloads at a time (4)")
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="number of hosts (4)")
    parser.add_argument("--faults", default=",".join(EVERY_S), metavar="KIND,...", help="only these kinds, or none")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="for the order of workloads and faults"
    )
    parser.add_argument("--keep", type=Path, default=Path("soak-alarms"), metavar="DIRECTORY", help="for alarms")
    options = parser.parse_args()
    options.faults = [] if options.faults == "none" else options.faults.split(",")
    if unknown := {*options.faults} - {*EVERY_S}:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(EVERY_S)}")
    return options


if __name__ == "__main__":
    main()
