"""Imports: at run time in new processes, and by the import rules over the source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grimp
import networkx as nx
import pytest

import dstack
from dstack.cli import main
from dstack.files.snapshot_file import save
from dstack.model.snapshot import Snapshot
from tests.paths import ROOT

COMMANDS = """
import sys
from dstack.cli import main
for arguments in {arguments}:
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, end.code
"""


def modules_after(program: str) -> set[str]:
    """The top-level modules in a new interpreter after it has run ``program``."""
    program += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_import_dstack_loads_nothing_else() -> None:
    loaded = modules_after("import dstack; dir(dstack)") - modules_after("import __future__, importlib, typing")

    assert loaded == {"dstack"}


def test_spans_load_nothing_that_a_program_of_ray_has_not() -> None:
    loaded = modules_after("from dstack import span")

    assert loaded - modules_after("import __future__, collections, contextvars, importlib, typing") == {"dstack"}


def test_public_values_come_without_ray_or_textual() -> None:
    assert not {"ray", "textual"} & modules_after("import dstack; [getattr(dstack, name) for name in dstack.__all__]")


def test_help_loads_click_and_little_else() -> None:
    """So it takes less than 0.1 s."""
    helped = [["--help"], *([name, "--help"] for name in main.commands)]

    heavy = {"asyncio", "grpc", "msgspec", "networkx", "numpy", "psutil", "ray", "rich", "tempfile", "textual"}
    assert not heavy & modules_after(COMMANDS.format(arguments=helped))


def test_show_loads_neither_ray_nor_textual_nor_networkx(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    save(Snapshot(dstack_version="0.1.0", taken_at=1.7e9, address="10.0.0.1:6379", ray_version="2.60.0"), path)

    loaded = modules_after(COMMANDS.format(arguments=[["show", str(path)], ["show", str(path), "--json"]]))

    assert not {"ray", "textual", "networkx"} & loaded


def test_taking_a_snapshot_loads_neither_ray_nor_its_dependencies() -> None:
    """The collector's imports take 0.2 s of CPU time; Ray would take 0.6 s more."""
    loaded = modules_after("import dstack.collecting.capture")

    assert {"grpc", "google", "dstack"} <= loaded
    heavy = {"attr", "click", "elftools", "jsonschema", "networkx", "numpy", "ray", "requests", "rich", "textual"}
    assert not (heavy | {"urllib3", "yaml"}) & loaded


def test_the_collector_is_started_before_much_is_loaded() -> None:
    assert not {"grpc", "msgspec", "psutil", "ray", "rich"} & modules_after(
        "import dstack.cli, dstack.collecting.collector"
    )


def test_public_names_resolve() -> None:
    for name in dstack.__all__:
        assert getattr(dstack, name) is not None
    assert set(dstack.__all__) <= set(dir(dstack))


def test_unknown_names_raise() -> None:
    with pytest.raises(AttributeError, match="'dstack' has no attribute 'snapshoot'"):
        dstack.snapshoot  # noqa: B018
    with pytest.raises(ImportError):
        exec("from dstack import snapshoot")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    return subprocess.run(
        [*command, "--no-cache", "--no-logo"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        timeout=60,
    )


def lint_with(folder: Path, lines: Sequence[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """The result for a copy of dstack with more lines at the ends of its modules."""
    shutil.copytree(ROOT / "dstack", folder / "dstack", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for module, line in lines:
        with (folder / "dstack" / module).open("a") as source:
            source.write(f"\n{line}\n")
    return lint_imports(folder)


def test_import_rules_hold() -> None:
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout


def test_no_modules_import_each_other() -> None:
    """Neither directly nor indirectly, not even for types."""
    graph = grimp.build_graph("dstack")
    imports = nx.DiGraph(
        (one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)
    )

    assert [sorted(cycle) for cycle in nx.strongly_connected_components(imports) if len(cycle) > 1] == []


FORBIDDEN = (
    ("model/snapshot.py", "import dstack.files"),
    ("observed/processes.py", "import dstack.model.snapshot"),
    ("observed/node.py", "import ray"),
    ("call_sites.py", "import dstack.model.snapshot"),
    ("errors.py", "import dstack.model.snapshot"),
    ("model/diagnosis.py", "import dstack.files.snapshot_file"),
    ("files/snapshot_file.py", "import ray"),
    ("analysis/graph/new.py", "import dstack.analysis.naming.names"),
    ("analysis/new.py", "import dstack.probes"),
    ("analysis/new.py", "import ray"),
    ("analysis/new.py", "import dstack.collecting.capture"),
    ("report/new.py", "import textual"),
    ("report/new.py", "import dstack.probes.connection.rpc"),
    ("tui/new.py", "import ray"),
    ("tui/new.py", "import dstack.collecting.capture"),
    ("probes/new.py", "import dstack.analysis"),
    ("probes/new.py", "import textual"),
    ("probes/node/new.py", "import dstack.model.snapshot"),
    ("probes/node/new.py", "import msgspec"),
    ("collecting/capture.py", "import ray"),
    ("watch/loop.py", "import prometheus_client"),
    ("watch/loop.py", "import ray"),
    ("cli/output.py", "def f():\n    import textual"),
)
CYCLES = (
    ("watch/figures.py", "import dstack.watch.loop", ".figures -> .loop"),
    ("probes/node/procfs/proc.py", "import dstack.probes.node.cpython.memory", ".procfs -> .cpython"),
)


def test_each_rule_can_fail(tmp_path: Path) -> None:
    """All forbidden imports are tried at once: each has a line of its own in the output."""
    done = lint_with(tmp_path, [*FORBIDDEN, *(case[:2] for case in CYCLES)])

    assert done.returncode == 1, done.stdout
    for module, line in FORBIDDEN:
        name, imported = module.removesuffix(".py").replace("/", "."), line.rpartition("import ")[2]
        assert re.search(rf"- +dstack\.{name} -> {imported}\b", done.stdout), (module, line)
    for _, _, cycle in CYCLES:
        assert cycle in done.stdout, cycle


def test_the_node_package_needs_only_the_standard_library_and_psutil() -> None:
    graph = grimp.build_graph("dstack", include_external_packages=True)
    modules = ("processes", "calls", "ledgers", "node", "outlines")
    observed = {f"dstack.observed.{name}" for name in modules}
    rooms = {name for name in graph.find_descendants("dstack.libraries") if not name.endswith(".waits")}
    sites = {
        "dstack.observed",
        "dstack.observed.frozen_dataclass",
        "dstack.observed.call_site",
        "dstack.call_sites",
        "dstack.libraries",
        *rooms,
    }
    probe = {"dstack.probes.node", *graph.find_descendants("dstack.probes.node"), *sites}

    needed = {name: graph.find_modules_directly_imported_by(name) - probe - observed for name in probe | observed}

    # Only the caller evaluates the bounds in the annotations of the observed values.
    assert {name for name, others in needed.items() if "msgspec" in others} == observed
    assert set().union(*needed.values()) <= sys.stdlib_module_names | {"psutil", "msgspec"}
