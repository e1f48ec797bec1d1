"""What Ray's source has of the functions and locals by which dstack recognises waits."""

from pathlib import Path

import pytest

from dstack.probes.node.ray_messages import NEW
from dstack.probes.node.ray_sources import PARTS, SourcePart, lost_in
from tests.versions.doctored import INSTALLED, Doctored

LOSES = "so dstack does not recognise"
C10D = "torch/distributed/distributed_c10d.py"
OF_RAY = [part for part in PARTS if part.package == "ray"]


def reasons(folder: Path) -> list[str]:
    return [lost.reason for lost in lost_in(folder)]


def test_the_installed_ray_has_all_parts() -> None:
    assert reasons(INSTALLED) == []


@pytest.mark.parametrize("part", [one for one in OF_RAY if one.function], ids=lambda one: f"{one.file}:{one.function}")
def test_a_renamed_function_is_named(part: SourcePart, tmp_path: Path) -> None:
    file = part.file.removeprefix("/").removeprefix("ray/")
    copy = Doctored(edits={file: {f"def {part.function}(": f"def renamed_{part.function}("}}).copy(tmp_path, runs=False)

    found = [one for one in lost_in(copy / "ray") if f"no function {part.function} in ray/{file}" in one.reason]
    assert [one for one in found if one.is_vital == part.is_vital and one.reason.endswith(f"{LOSES} {part.feeds}")]


def test_a_renamed_local_is_named(tmp_path: Path) -> None:
    names = {("_private/worker.py", "get_objects"): {"object_refs": "refs"}}
    copy = Doctored(names=names).copy(tmp_path, runs=False)

    assert reasons(copy / "ray") == [
        f"this Ray has no object_refs in get_objects of ray/_private/worker.py, {LOSES} ray.get"
    ]


def test_a_removed_file_is_named(tmp_path: Path) -> None:
    copy = Doctored(edits={"util/queue.py": {"class Queue": "class Queue"}}).copy(tmp_path, runs=False)
    (copy / "ray/util/queue.py").unlink()

    assert reasons(copy / "ray") == [
        f"this Ray has no file ray/util/queue.py, {LOSES} {name} of ray.util.queue"
        for name in ("Queue.get", "Queue.put")
    ]


def test_what_is_new_in_ray_is_not_lost_in_an_older_one(tmp_path: Path) -> None:
    new = next(part for part in PARTS if part.since == NEW and part.function == "_next_sync")
    old = Doctored(version="2.46.0", edits={new.file.removeprefix("ray/"): {"_next_sync": "_next"}}).copy(
        tmp_path, runs=False
    )

    assert reasons(old / "ray") == []


def test_a_folder_without_a_version_says_nothing(tmp_path: Path) -> None:
    assert reasons(tmp_path) == []


def test_the_locals_of_other_libraries_are_checked_where_these_are(tmp_path: Path) -> None:
    copy = Doctored(version="2.60.0").copy(tmp_path, runs=False)
    torch = tmp_path / "torch"
    (torch / "distributed").mkdir(parents=True)
    (torch / "__init__.py").touch()
    source = "def _new_group_with_tag(ranks, name):\n    group_desc = name\n"
    (torch / "distributed" / "distributed_c10d.py").write_text(source)

    assert (
        f"this torch has no group_name in _new_group_with_tag of {C10D}, {LOSES} the members of new groups"
        in reasons(copy / "ray")
    )
    assert not any("anyio" in reason for reason in reasons(copy / "ray"))
