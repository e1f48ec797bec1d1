"""Pods and their containers: Ray runs as a user without capabilities, and dstack in its container or in another one.

Each host is a pod. Its namespaces, users and capabilities are those of containers. There is no container runtime, so no
seccomp filter and no AppArmor profile.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dstack.probes.node.procfs import proc
from tests.clusters.dstack_command import Json
from tests.hosts import Hosts
from tests.hosts.command import check, dstack
from tests.hosts.rings import members_of, ring

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.usefixtures("hosts_possible"),
    pytest.mark.skipif(bool(proc.ptrace_scope()), reason="needs kernel.yama.ptrace_scope 0: a pod cannot set its own"),
]

RAY, ANOTHER = 1000, 2000
"""Users of Ray; the first is that of Ray's images."""
CAPABILITIES = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service"),
    *("net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"),
)
"""Those of root in a container of Docker or containerd by default."""
ADDRESS = "127.0.0.1:6379"
LINK = ("sh", "-c", "ln -sT /proc/$(pgrep -xo raylet)/root/tmp/ray /tmp/ray")
"""Links the files of Ray's container. In a real pod its first process, with the user of Ray, serves as well."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(RAY, marks=pytest.mark.exhaustive, id="same-user"), pytest.param(ANOTHER, id="other-user")],
)
def pods(hosts_possible: None, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Two pods with one member of a deadlock in each; the user of Ray is another in the second.

    Their programs have no capability and an empty bounding set, so only the rule of the same user lets a process read
    another one: the kernel compares the users and the capabilities of both.
    """
    with Hosts(2, users={1: RAY, 2: request.param}) as hosts, ring(hosts, [1, 2]):
        assert sorted(member.uids().real for member in members_of(hosts)) == [RAY, request.param]
        yield hosts


def assert_found_by_memory(hosts: Hosts, document: Json) -> None:
    assert (document["verdict"], document["incomplete"], document["exit_code"]) == ("deadlock", False, 1)
    (finding,) = document["findings"]
    assert finding["confirmed"]
    assert {(member["node_id"], member["access"]) for member in finding["members"]} == {
        (hosts.nodes[1], "memory"),
        (hosts.nodes[2], "memory"),
    }
    coverage = document["coverage"]
    assert coverage["nodes"] == {"seen": 2, "total": 2}
    assert coverage["access"] == {"memory": coverage["workers"]["total"]}
    assert coverage["failures"] == []


def test_dstack_in_the_container_of_ray_reads_all_pods_as_their_users(pods: Hosts) -> None:
    status = pods.exec(1, ["grep", "-E", "^(Uid|CapPrm|CapBnd):", "/proc/self/status"]).stdout.split()
    assert status == ["Uid:", *[str(RAY)] * 4, "CapPrm:", "0" * 16, "CapBnd:", "0" * 16]

    assert_found_by_memory(pods, check(pods, 1))
    printed = dstack(pods, 1, "logs", "pass_token", "--address", pods.address).stdout
    assert printed.count("the token is passed on; password=***") == 2


@pytest.mark.parametrize(
    ("user", "capabilities"), [(0, (*CAPABILITIES, "sys_ptrace")), (RAY, ())], ids=["root-with-ptrace", "user-of-ray"]
)
def test_dstack_in_another_container_joins_by_a_link_to_the_sockets_of_ray(
    pods: Hosts, user: int, capabilities: tuple[str, ...]
) -> None:
    with pods.container(1, user=user, capabilities=capabilities) as container:
        assert pods.exec(container, LINK).returncode == 0

        assert_found_by_memory(pods, check(pods, container, address=ADDRESS))


def test_without_the_link_only_its_own_pod_is_read(pods: Hosts) -> None:
    with pods.container(1, capabilities=(*CAPABILITIES, "sys_ptrace")) as container:
        document = check(pods, container, address=ADDRESS)
        assert pods.exec(container, LINK).returncode == 0  # Ray has left no directory there

    assert (document["incomplete"], document["exit_code"]) == (True, 4)
    assert document["coverage"]["access"] == {"memory": document["coverage"]["workers"]["total"] - 1, "state only": 1}
    (failure,) = document["coverage"]["failures"]
    assert failure["node_id"] == pods.nodes[2]
    assert "no access to the socket of this host's raylet, /tmp/ray/session_" in failure["reason"]
    assert "ln -sT /proc/PID/root/tmp/ray /tmp/ray" in failure["remedy"]


def test_root_without_ptrace_in_another_container_reads_other_pods_only(pods: Hosts) -> None:
    with pods.container(1, capabilities=CAPABILITIES) as container:
        document = check(pods, container, address=ADDRESS)

    assert (document["incomplete"], document["exit_code"]) == (True, 4)
    assert document["coverage"]["access"] == {"state only": document["coverage"]["workers"]["total"]}
    (refused,) = {one["reason"] for one in document["coverage"]["failures"] if one["stage"] == "stacks"}
    assert refused == "no permission: dstack runs without the capability SYS_PTRACE, as in a container"
