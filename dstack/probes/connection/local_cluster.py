"""Runs an example program as a driver with its own local cluster, and ends both."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from dstack.errors import ClusterError

START_S = 60.0
END_S = 5.0


@contextlib.contextmanager
def running_example(path: Path) -> Iterator[str]:
    """The GCS address of the cluster the program has started, once it prints ``ready``.

    Raises :class:`ClusterError` with the end of its output if it is not ready within a minute.
    """
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with tempfile.TemporaryFile("w+") as output:
        program = psutil.Popen(
            [sys.executable, str(path)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        family: set[psutil.Process] = {program}
        try:
            _wait_until_ready(program, output)
            family.update(program.children(recursive=True))
            yield _gcs_address(family)
        finally:
            _end(family)


def _wait_until_ready(program: psutil.Popen, output: IO[str]) -> None:
    deadline = time.monotonic() + START_S
    while "ready" not in _lines(output):
        if program.poll() is not None or time.monotonic() > deadline:
            what = "ended early" if program.poll() is not None else f"did not start within {START_S:.0f} s"
            raise ClusterError(f"The example {what}: {' '.join(_lines(output)[-3:]) or 'no output'}")
        time.sleep(0.05)


def _lines(output: IO[str]) -> list[str]:
    output.seek(0)
    return output.read().splitlines()


def _gcs_address(family: set[psutil.Process]) -> str:
    flag = "--gcs-address="
    for process in family:
        with contextlib.suppress(psutil.Error):
            for word in process.cmdline():
                if word.startswith(flag):
                    return word.removeprefix(flag)
    raise ClusterError("The Ray cluster of the example was not found.")


def _end(family: set[psutil.Process]) -> None:
    """Ends the driver, which ends its cluster; what is left after a while is killed, by its pid."""
    for process in tuple(family):
        with contextlib.suppress(psutil.Error):
            family.update(process.children(recursive=True))
    drivers = [process for process in family if isinstance(process, psutil.Popen)]
    for process in drivers:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(family, timeout=END_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=END_S)
