"""The clusters that other tests run on: they start, are isolated, and leave nothing behind."""

import sys
from pathlib import Path

import psutil
import pytest

from tests.clusters.ray_clusters import Auth, TokenIn, ray_cluster, run_example
from tests.processes import carrying, command_line, running, wait_until

pytestmark = pytest.mark.ray

ORDER = ["ray::Cashier.order"]


@pytest.mark.exhaustive
def test_an_example_runs_on_its_own_cluster_and_leaves_no_processes_or_files() -> None:
    # given
    real_token = Path.home() / ".ray" / "auth_token"
    before = real_token.stat().st_mtime_ns if real_token.exists() else None

    # when
    with run_example("two_actors") as example:
        directory = Path(example.environment["RAY_TMPDIR"])
        family = carrying(("RAY_TMPDIR", str(directory)))
        assert psutil.Process(example.pid) in family
        assert example.address.count(":") == 1
        assert "ready\n" in example.output()

    # then
    assert len(family) > 5
    assert not carrying(("RAY_TMPDIR", str(directory)))
    assert not directory.exists()
    assert before == (real_token.stat().st_mtime_ns if real_token.exists() else None)


@pytest.mark.exhaustive
def test_a_failing_test_leaves_no_processes_or_files() -> None:
    with pytest.raises(ZeroDivisionError), ray_cluster() as cluster:
        raise ZeroDivisionError

    assert not carrying(("RAY_TMPDIR", str(cluster.directory)))
    assert not cluster.directory.exists()


def test_an_exit_before_ready_is_reported_with_the_output(tmp_path: Path) -> None:
    script = "print('so far so good'); raise SystemExit(3)"
    with (
        running([sys.executable, "-c", script], {}, tmp_path / "log") as child,
        pytest.raises(AssertionError, match=r"(?s)exited before 'ready'.*so far so good"),
    ):
        child.wait_for_line("ready", deadline_s=20)


@pytest.mark.parametrize(("auth", "token_in"), [("default", "home"), ("on", "file")])
@pytest.mark.exhaustive
def test_examples_join_a_cluster_and_leave_no_workers(auth: Auth, token_in: TokenIn) -> None:
    with ray_cluster(auth=auth, token_in=token_in) as cluster:
        with cluster.run_example("two_actors") as example:
            assert example.address == cluster.address
            wait_until(
                lambda: ORDER in titles_in(cluster.directory),
                deadline_s=20,
                what=lambda: "cashier taking the order",
            )
        assert ORDER not in titles_in(cluster.directory)


def titles_in(directory: Path) -> list[list[str]]:
    return [command_line(process) for process in carrying(("RAY_TMPDIR", str(directory)))]
