"""Waits for a store of torch.distributed: any code of the job may set the key, serve the store or connect to it."""

from __future__ import annotations

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.observed.calls import Call, End, EndState, Holder, KernelObjects, StoreUse
from dstack.report.text import report_text
from tests.unit.analysis.graph.rank_scenes import Gang, gang, only_finding
from tests.unit.scenes import SceneProcess

AT = "10.0.0.1:29500"


def waits(process: SceneProcess, use: StoreUse, state: EndState, *holders: int, name: str = "Store.wait") -> None:
    """The task of a process waits for a store, which these pids serve."""
    of = tuple(Holder(pid=pid, name="" if pid > 99 else "python") for pid in holders)
    end = End(what="TCP", name=AT, identity=f"10.0.0.1:4000 {AT}", state=state, holders=of)
    need = KernelObjects(system_call="poll", ends=(end,), store=use)
    process.threads[0].call = Call(site="torch.distributed.Store", frame=0, need=need, name=name)


def waiting_for_a_key(server: int | None = None) -> Gang:
    """Three actors that wait for a key of a store, which the first of them serves."""
    it = gang(3)
    for rank in it.ranks:
        rank.memberships.clear()
        served_by = it.ranks[0].worker.pid if server is None else server
        waits(rank, StoreUse(address=AT, keys=("loaded",)), "connected", served_by)
    return it


def test_a_key_that_no_code_of_the_job_can_set() -> None:
    finding = only_finding(waiting_for_a_key().diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.summary == "3 × Rank.train wait in Store.wait, and no code of the job that could set it can go on"
    assert finding.assumed == ("no process that the job has not started sets loaded",)
    assert "Set loaded before" in str(finding.advice)


def test_a_rank_that_computes_may_set_the_key() -> None:
    it = waiting_for_a_key()
    it.ranks[1].computes()

    diagnosis = it.diagnose()

    assert (diagnosis.verdict, diagnosis.is_stuck) == ("running", False)
    assert "; 2 × Rank.train wait in Store.wait; all depends on Rank.train" in only_finding(diagnosis).summary


def test_a_driver_that_computes_may_set_the_key() -> None:
    it = waiting_for_a_key()
    it.driver.computes()

    assert not it.diagnose().is_stuck


def test_a_store_outside_of_the_job_may_get_the_key_from_anywhere() -> None:
    diagnosis = waiting_for_a_key(server=77).diagnose()

    assert (diagnosis.verdict, diagnosis.is_stuck) == ("stalled", False)


def test_a_short_timeout_is_a_loop_that_looks_again() -> None:
    it = waiting_for_a_key()
    for rank in it.ranks:
        call = rank.threads[0].call
        assert call is not None
        rank.threads[0].call = Call(site=call.site, frame=0, need=call.need, name=call.name, timeout_s=10)

    assert not any(finding.kind == "deadlock" and finding.confirmed for finding in it.diagnose().findings)


def test_clients_without_a_server() -> None:
    it = gang(2)
    for rank in it.ranks:
        rank.memberships.clear()
        waits(rank, StoreUse(address=AT, size=3), "refused", name="TCPStore")

    finding = only_finding(it.diagnose())

    assert finding.summary.startswith(f"2 × Rank.train wait in TCPStore at {AT}, where nothing listens, and no code")
    assert "is_master=True" in str(finding.advice)


def test_a_server_says_how_many_have_come() -> None:
    it = gang(2)
    waits(
        it.ranks[0],
        StoreUse(address=AT, is_server=True, size=3, clients=2),
        "listening",
        it.ranks[0].worker.pid,
        name="TCPStore until 3 processes have connected",
    )
    it.returns(1)

    snapshot = it.scene.sample().second_sample().snapshot()

    text = " ".join(report_text(AnalysedSnapshot.of(snapshot)).split())
    assert f"TCPStore until 3 processes have connected at {AT} (2 connections so far), and no code" in text
