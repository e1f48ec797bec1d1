"""dstack finds the version and state of a process of another build of Python, or rejects it with a reason."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from dstack.observed.calls import HeldRefs
from dstack.probes.node import wire
from dstack.probes.node.cpython.debug_offsets import (
    FIELDS,
    HEADER_SIZE,
    read_debug_offsets,
    stated_python,
    with_debug_offsets,
)
from dstack.probes.node.cpython.layouts import LAYOUTS
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.procfs.proc import Mapping
from dstack.probes.node_access import targets
from dstack.probes.node_access.targets import Image, foreign_python
from tests.processes import Child, running
from tests.sampling import IN_RAY_GET, Plain, sample, target, words_of
from tests.versions.compatibility import find
from tests.versions.interpreters import python_or_skip

WHERE_IT_IS = """
import ctypes
at = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
for line in open("/proc/self/maps"):
    start, end = (int(number, 16) for number in line.split()[0].split("-"))
    if start <= at < end:
        print(at, line.split()[-1])
"""
SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"
OTHERS = sorted({f"{major}.{minor}" for major, minor in LAYOUTS} - {f"3.{sys.version_info[1]}"})
WITHOUT_OFFSETS = "does not begin with debug offsets, as in every Python from 3.13 on"
FREE_THREADED = "it runs a free-threaded build of Python 3.13, which dstack cannot read"


def interpreter(version: str) -> str:
    python = find(version)
    assert python, f"there is no Python {version} on the PATH or under pyenv"
    return python


@cache
def binary(version: str) -> Path:
    """The file with this Python's ``_PyRuntime``."""
    done = subprocess.run([interpreter(version), "-c", WHERE_IT_IS], check=True, capture_output=True, text=True)
    return Path(done.stdout.split()[1])


def image(file: Path) -> wire.ForeignPython | wire.UnreadablePython | None:
    with file.open("rb") as stream:
        return Image(ELFFile(stream), file.name).found()


def changed(version: str, folder: Path, symbol: str, offset: int, value: int) -> Path:
    """A copy of the binary with another number at this offset from the symbol."""
    original = binary(version)
    content = bytearray(original.read_bytes())
    with original.open("rb") as stream:
        elf: Any = ELFFile(stream)
        address = elf.get_section_by_name(".gnu.hash").get_symbol(symbol)["st_value"] + offset
        at = next(elf.address_offsets(address, 8))
    content[at : at + 8] = value.to_bytes(8, "little")
    copy = folder / original.name
    copy.write_bytes(content)
    copy.chmod(0o755)
    return copy


@pytest.mark.parametrize("version", OTHERS)
def test_version_and_runtime_address_are_those_of_the_process(version: str, tmp_path: Path) -> None:
    script = f"{WHERE_IT_IS}\n{SLEEP}"

    with running([*python_or_skip(version), "-c", script], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        found = foreign_python(child.pid)

    major, minor = version.split(".")
    runtime = (tmp_path / "log").read_text().split()[0]
    assert found == {"version": (int(major), int(minor)), "runtime": int(runtime)}


def test_a_process_of_the_same_build_needs_no_version() -> None:
    assert foreign_python(os.getpid()) is None


def test_a_program_that_is_not_python_is_rejected() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        found = foreign_python(process.pid)
        process.kill()

    assert found == {"unreadable": "no CPython with symbols was found in it"}


def test_an_ended_process_is_not_rejected() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    assert foreign_python(process.pid) is None


@pytest.mark.parametrize(
    ("version", "symbol", "offset", "value", "reason"),
    [
        ("3.13", "Py_Version", 0, 0x031000F0, "it runs Python 3.16, which dstack cannot read"),
        ("3.12", "Py_Version", 0, 0x030900F0, "it runs Python 3.9, which dstack cannot read"),
        ("3.12", "Py_Version", 0, 0x030C00B4, "it runs a pre-release of Python 3.12, which dstack cannot read"),
        ("3.13", "_PyRuntime", 16, 1, FREE_THREADED),
        ("3.13", "_PyRuntime", 0, 0, f"its _PyRuntime {WITHOUT_OFFSETS}"),
        ("3.13", "Py_Version", 0, 0x030E00F0, "its debug offsets are of Python 3.13, not 3.14"),
    ],
)
def test_a_version_without_a_layout_is_rejected(
    version: str, symbol: str, offset: int, value: int, reason: str, tmp_path: Path
) -> None:
    copy = changed(version, tmp_path, symbol, offset, value)

    assert image(copy) == {"unreadable": reason}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("libpython3.9.so.1.0", "it runs Python 3.9, which dstack cannot read"),
        ("libpython3.12.so.1.0", "it runs a Python of an unknown version"),
        ("worker", "it runs a Python of an unknown version"),
    ],
)
def test_without_a_symbol_the_version_is_in_the_file_name_or_unknown(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(binary("3.10"))

    assert image(tmp_path / name) == {"unreadable": reason}


def test_two_pythons_in_one_process_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"libpython{version}.so" for version in ("3.10", "3.12")]
    for file, version in zip(files, ("3.10", "3.12"), strict=True):
        file.symlink_to(binary(version))
    mapped = [Mapping(0, 1, 0, ("fe:00", file.name), str(file)) for file in files]
    monkeypatch.setattr(targets, "mappings", lambda pid: mapped)
    with subprocess.Popen(["sleep", "1000"]) as process:
        found = foreign_python(process.pid)
        process.kill()

    assert found == {"unreadable": "it contains more than one Python"}


@pytest.mark.parametrize("version", [version for version in OTHERS if version in ("3.13", "3.14", "3.15")])
def test_offsets_stated_by_a_process_are_the_saved_ones(version: str, tmp_path: Path) -> None:
    with running([*python_or_skip(version), "-c", SLEEP], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        found = foreign_python(child.pid)
        assert found
        assert "version" in found
        with open_memory(child.pid) as memory:
            offsets = read_debug_offsets(memory, found["runtime"], found["version"])

    saved = LAYOUTS[found["version"]]
    assert with_debug_offsets(saved, offsets) == saved


def test_a_process_with_unexpected_offsets_is_rejected(tmp_path: Path) -> None:
    offset = HEADER_SIZE + 8 * FIELDS[3, 13].index("pyobject.ob_type")

    with running_changed(tmp_path, "_PyRuntime", offset, 24) as odd:
        assert foreign_python(odd.pid) == {
            "unreadable": "its debug offset of pyobject.ob_type is 24 in a struct of 16 bytes"
        }


@contextlib.contextmanager
def running_changed(tmp_path: Path, symbol: str, offset: int, value: int) -> Iterator[Child]:
    """A process of a 3.13 with another number at this offset, in its program or in its library."""
    copy = changed("3.13", tmp_path, symbol, offset, value)
    program = tmp_path / "python3.13"
    if not program.exists():
        shutil.copy(interpreter("3.13"), program)
    environment = {"PYTHONHOME": str(Path(interpreter("3.13")).parent.parent)}
    if copy != program:
        environment["LD_PRELOAD"] = str(copy)
    with running([str(program), "-c", SLEEP], environment, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


def sample_foreign(pid: int) -> Plain:
    return sample(target(pid, python=foreign_python(pid)))


def test_a_rejected_process_is_one_failure_and_pyspy_reads_its_stacks(tmp_path: Path) -> None:
    with running_changed(tmp_path, "_PyRuntime", 16, 1) as free_threaded:
        result = sample_foreign(free_threaded.pid)

    (failure,) = result["failures"]
    assert failure["reason"] == f"its memory could not be read: {FREE_THREADED}"
    (thread,) = result["processes"]["w"]["threads"]
    assert [result["frames"][frame]["function"] for frame in result["stacks"][thread["stack"]]] == ["<module>"]


def test_a_process_states_itself_what_cannot_be_read(tmp_path: Path) -> None:
    with running_changed(tmp_path, "_PyRuntime", 16, 1) as child:
        found, result = stated_python(child.pid), sample(target(child.pid))

    assert found == {"unreadable": FREE_THREADED}
    assert [failure["reason"] for failure in result["failures"]] == [f"its memory could not be read: {FREE_THREADED}"]
    assert result["processes"]["w"]["access"] == "py-spy"


def test_rays_calls_of_a_rejected_process_are_recognised_by_their_frames(tmp_path: Path) -> None:
    file = tmp_path / "ray" / "_private" / "worker.py"
    file.parent.mkdir(parents=True)
    file.write_text(IN_RAY_GET)
    with running([sys.executable, str(file)], dict(os.environ), tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        result = sample(target(child.pid, python={"unreadable": "it runs Python 4.0, which dstack cannot read"}))

    (thread,) = result["processes"]["w"]["threads"]
    assert thread["os_thread_id"] == child.pid
    assert isinstance(thread["call"].need, HeldRefs)
    assert (words_of(thread["call"])["kind"], thread["call"].timeout_s) == ("ray.get", None)


def test_a_process_that_pyspy_cannot_read_either_has_a_reason(tmp_path: Path) -> None:
    with running_changed(tmp_path, "Py_Version", 0, 0x031000F0) as newer:
        result = sample_foreign(newer.pid)

    (failure,) = result["failures"]
    assert failure["stage"] == "stacks"
    assert failure["reason"].startswith("it runs Python 3.16, which dstack cannot read (py-spy: ")
