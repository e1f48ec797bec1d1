"""The emulated hosts: separate, joined by nothing but a network, and gone without a trace."""

import errno
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clusters.ray_clusters import busy_workers
from tests.hosts import Hosts
from tests.processes import carrying, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]


def test_the_same_pids_occur_on_different_hosts(three_hosts: Hosts) -> None:
    pids = [set(three_hosts.exec(number, ["pgrep", "-f", "ray"]).stdout.split()) for number in three_hosts.nodes]

    assert set.intersection(*pids)
    assert len(set(three_hosts.nodes.values())) == 3


def test_hosts_share_no_files(three_hosts: Hosts) -> None:
    mine = f"mine-{secrets.token_hex(8)}"
    three_hosts.exec(1, ["touch", f"/tmp/{mine}", f"/dev/shm/{mine}"])

    assert three_hosts.exec(1, ["ls", f"/tmp/{mine}", f"/dev/shm/{mine}"]).returncode == 0
    assert three_hosts.exec(2, ["ls", f"/tmp/{mine}"]).returncode != 0
    assert three_hosts.exec(2, ["ls", f"/dev/shm/{mine}"]).returncode != 0
    assert not Path(f"/tmp/{mine}").exists()


def test_a_command_past_its_deadline_is_killed_with_its_children(three_hosts: Hosts) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        three_hosts.exec(2, ["sh", "-c", "sleep 4321; true"], timeout_s=0.5)

    assert three_hosts.exec(2, ["pgrep", "-f", "^sleep 4321"]).stdout == ""


@pytest.mark.exhaustive
def test_an_example_spreads_its_actors_over_the_hosts(three_hosts: Hosts) -> None:
    with three_hosts.run_example("ring_of_five", on=2):
        counts = wait_until(
            lambda: five_members(three_hosts), deadline_s=20, what=lambda: "five actors inside pass_token"
        )
        assert sum(count > 0 for count in counts) > 1

    assert not busy_workers(three_hosts.tag)


def five_members(hosts: Hosts) -> list[int] | None:
    """How many actors of the ring each host runs, once all five are inside their method."""
    outputs = [hosts.exec(number, ["pgrep", "-f", "^ray::Member.*pass_token"]).stdout for number in hosts.nodes]
    counts = [len(output.split()) for output in outputs]
    return counts if sum(counts) == 5 else None


@contextmanager
def unchanged_machine() -> Iterator[None]:
    """Fail unless this machine's interfaces, network namespaces and mounts are the same at the end."""
    before = machine()
    yield
    assert machine() == before


def machine() -> list[str]:
    listings = (["ip", "-o", "-brief", "link"], ["ip", "netns", "list"], ["cat", "/proc/self/mounts"])
    return [subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in listings]


@pytest.mark.exhaustive
def test_hosts_are_disconnected_reconnected_and_killed_and_leave_nothing_if_the_test_fails() -> None:
    hosts = Hosts(2)

    with unchanged_machine(), pytest.raises(ZeroDivisionError):
        cut_mend_kill_and_fail(hosts)

    wait_until(lambda: not carrying(hosts.tag), deadline_s=20, what=lambda: f"the end of {carrying(hosts.tag)}")
    assert not Path(hosts.tag[1]).exists()


def cut_mend_kill_and_fail(hosts: Hosts) -> None:
    with hosts:
        assert reaches(hosts, 1, "host2")
        hosts.cut(2)
        assert not reaches(hosts, 1, "host2")
        assert hosts.exec(2, ["true"]).returncode == 0
        hosts.mend(2)
        wait_until(lambda: reaches(hosts, 1, "host2"), deadline_s=20, what=lambda: "host2 back")
        hosts.kill(2)
        assert not reaches(hosts, 1, "host2")
        raise ZeroDivisionError


def reaches(hosts: Hosts, source: int, target: str) -> bool:
    """Whether a packet gets an answer from ``target``, be it that nothing listens there."""
    probe = f"import socket; s = socket.socket(); s.settimeout(1); print(s.connect_ex(({target!r}, 1)))"
    return hosts.exec(source, ["python", "-c", probe]).stdout == f"{errno.ECONNREFUSED}\n"


def test_a_failed_start_leaves_nothing() -> None:
    hosts = Hosts(1, deadline_s=0.5)

    with unchanged_machine(), pytest.raises(AssertionError, match=r"(?s)not within 0.5 s: 1 nodes"), hosts:
        pass

    assert not carrying(hosts.tag)
    assert not Path(hosts.tag[1]).exists()
