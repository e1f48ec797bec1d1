"""Nothing is executed in, written to or sent to target processes, and files are written safely."""

from __future__ import annotations

import ast
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

import dstack
from dstack.files.snapshot_file import save
from dstack.probes.node.cpython.memory import open_memory
from dstack.pytest_plugin import inspection
from dstack.watch.snapshot_saver import SnapshotDirectory
from tests.unit.scenes import Scene

PACKAGE = Path(dstack.__file__).parent
SIGNALS = {
    ("probes/node/commands.py", "os.kill(pid, signal.SIGCONT)"),
    ("watch/events.py", "os.killpg(process.pid, signal.SIGKILL)"),
    ("processes/interruption.py", "signal.pthread_kill(main, signal.SIGINT)"),
    ("probes/node/procfs/open_files.py", "os.pidfd_open(pid)"),
}
"""All signals: to a target, to the user's own command, and to a thread of dstack's own process. The pidfd sends none: a
socket of the process is duplicated by it, to read its timeout."""
C = {f"probes/node/cpython/{name}.py" for name in ("memory", "python_process")} | {"processes/child.py"}
C |= {"probes/node/gpus.py", "probes/node/procfs/open_files.py"}
"""Modules that call C: for addresses in own memory, to read other memory, for the own end, to query GPUs, and to read
the timeout of a socket."""


def signals(source: str) -> Iterator[str]:
    """The calls that may send a signal; only sources with their names are parsed."""
    for node in ast.walk(ast.parse(source)) if re.search("kill|pidfd", source) else ():
        if isinstance(node, ast.Call) and re.match(r"os\.(kill|pidfd)|signal\.(pthread_kill|pidfd)", ast.unparse(node)):
            yield ast.unparse(node)


def test_the_only_signal_to_a_target_is_sigcont() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), call) for path in PACKAGE.rglob("*.py") for call in signals(path.read_text())
    }

    assert found == SIGNALS


def test_only_pyspy_traces_or_writes() -> None:
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}

    assert {name for name, text in texts.items() if "ctypes" in text} == C
    for word in ("PTRACE_ATTACH", "PTRACE_SEIZE", "PTRACE_POKE", "process_vm_writev", "pwrite", "remote_exec"):
        assert not [name for name, text in texts.items() if word in text], word


def test_memory_is_opened_for_reading_only() -> None:
    with open_memory(os.getpid()) as memory:
        assert fcntl.fcntl(memory._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    snapshot = Scene().snapshot()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("s.json", "t.json.gz"):
        (tmp_path / name).symlink_to(victim)
    ring = SnapshotDirectory(tmp_path / "ring", keep=5)
    expected = ring._files._free_name(snapshot.taken_at)
    expected.symlink_to(victim)

    save(snapshot, tmp_path / "s.json", force=True)
    inspection._save_if_possible(snapshot, tmp_path / "t.json.gz")
    saved = ring.save(snapshot)

    assert victim.read_text() == "mine"
    assert saved != expected
    assert not (tmp_path / "s.json").is_symlink()
    assert not (tmp_path / "t.json.gz").is_symlink()


def test_files_are_readable_by_their_owner_only_even_while_written(tmp_path: Path) -> None:
    modes: set[int] = set()
    real_replace, real_link = os.replace, os.link

    def noted(before: str, after: str, real: object = None) -> None:
        modes.update(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        (real_replace if os.path.lexists(after) else real_link)(before, after)

    umask = os.umask(0)
    try:
        os.replace = os.link = noted  # type: ignore[assignment]
        save(Scene().snapshot(), tmp_path / "s.json")
        save(Scene().snapshot(), tmp_path / "s.json", force=True)
    finally:
        os.replace, os.link = real_replace, real_link
        os.umask(umask)

    assert modes == {0o600}
