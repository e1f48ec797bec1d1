"""What torch's dumps of flight recorders say beside a verdict, and which of them are of no job that matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import DumpedRanks
from dstack.model.snapshot import Job, Snapshot
from dstack.observed.calls import TORCH, ProcessGroup
from dstack.observed.ledgers import Collective, GroupLedger, RecorderDump
from dstack.observed.processes import Frame
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from tests.unit.scenes import JOB, TAKEN_AT, Scene, group_of

BEGAN_AT, WRITTEN_AT = TAKEN_AT - 7200.0, TAKEN_AT - 1200.0
LINES = (12, 88)
"""Where the user's code calls ``all_reduce``: in every step, and at the end."""
JOBS = (Job(job_id=JOB, entrypoint="python train.py", started_at=BEGAN_AT),)


def dump(rank: int, calls: Sequence[int], **known: Any) -> RecorderDump:
    """The dump of a rank that has entered these of the two calls, 1,200 of which are not recorded any more."""
    ledger = GroupLedger(
        group=0,
        backend="nccl",
        entered=1200 + len(calls),
        recorded=1200 + len(calls),
        calls=tuple(calls),
        open=(1200 + len(calls),),
        entered_at=WRITTEN_AT - 600,
    )
    group = ProcessGroup(library=TORCH, world="", name="0", rank=rank, ranks=(0, 1, 2, 3), description="default_pg")
    fields: dict[str, Any] = {
        "path": f"/tmp/nccl_trace_rank_{rank}",
        "rank": rank,
        "written_at": WRITTEN_AT,
        "thread": "ray::Trainer.ru",
        "world_size": 4,
        "groups": (group,),
        "ledgers": (ledger,),
        "collectives": tuple(Collective(operation="all_reduce", stack=at) for at in range(2)),
    }
    return RecorderDump(**{**fields, **known})


BEHIND = [dump(0, (0, 0, 0, 1)), dump(1, (0, 0, 0, 1)), dump(2, (0, 0, 0)), dump(3, (0, 0, 0, 1))]


def snapshot_with(*dumps: RecorderDump, jobs: Sequence[Job] = JOBS, scene: Scene | None = None) -> Snapshot:
    """A snapshot of a driver that sleeps, unless there is a ``scene``."""
    if scene is None:
        scene = Scene()
        scene.driver()
    made = scene.sample().snapshot()
    frames = tuple(Frame(function="train", file="/app/train.py", line=line, origin="user") for line in LINES)
    first = len(made.stacks)
    stacks = tuple((len(made.frames) + at,) for at in range(2))
    placed = (
        replaced(one, collectives=tuple(replaced(it, stack=first + it.stack) for it in one.collectives))
        for one in dumps
    )
    return replace(
        made,
        jobs=tuple(jobs),
        frames=(*made.frames, *frames),
        stacks=(*made.stacks, *stacks),
        recorder_dumps=tuple(placed),
    )


def dumped(*dumps: RecorderDump, **known: Any) -> DumpedRanks | None:
    return diagnose(snapshot_with(*dumps, **known)).dumped


def text_of(*dumps: RecorderDump, **known: Any) -> str:
    """What is said behind the time."""
    found = dumped(*dumps, **known)
    assert found is not None
    return found.text.partition("20 min ago, on ")[2]


def test_the_rank_that_is_behind_is_named_as_for_processes() -> None:
    found = dumped(*BEHIND)

    assert found is not None
    assert found.difference is not None
    assert (found.ranks, found.missing, found.jobs, found.is_of_ray) == ((0, 1, 2, 3), (), (JOB,), True)
    assert (found.difference.kind, found.difference.ranks, found.difference.number) == ("behind", (2,), 1204)
    assert text_of(*BEHIND) == (
        "ranks 0-3: rank 2 is 1 collective behind since number 1,204 (all_reduce at train.py:88)"
    )


def test_it_is_in_the_first_lines_of_the_report_and_no_part_of_the_verdict() -> None:
    with_dumps = snapshot_with(*BEHIND)
    analysed = AnalysedSnapshot.of(with_dumps)

    assert analysed.diagnosis.verdict == diagnose(snapshot_with()).verdict
    assert "rank 2 is 1 collective behind" in " ".join(report_text(analysed).splitlines()[:4]).replace("  ", "")
    document = msgspec.json.decode(check_json(analysed))
    assert document["dumped"]["difference"]["ranks"] == [2]
    assert document["verdict"] == analysed.diagnosis.verdict


def test_a_rank_without_a_dump_is_named() -> None:
    assert text_of(*BEHIND[:2], BEHIND[3]) == (
        "ranks 0-1, 3 of 4: the records do not differ, the last is number 1,204 (all_reduce at train.py:88); "
        "no dump of rank 2 was found"
    )


def test_one_dump_alone_has_its_last_call() -> None:
    assert text_of(dump(0, (0, 1), world_size=None)) == "rank 0: the last is number 1,202 (all_reduce at train.py:88)"


def test_a_process_that_may_not_be_of_ray_is_said_to_be_so() -> None:
    assert text_of(dump(0, (0, 1), world_size=None, thread="python")).endswith(
        "; whether a worker of Ray wrote it is not known"
    )


def test_a_file_that_is_no_dump_is_one_remark() -> None:
    foreign = RecorderDump(path="/tmp/nccl_trace_rank_2", rank=2, written_at=WRITTEN_AT, problem="malformed")

    assert text_of(*BEHIND[:2], foreign, BEHIND[3]).endswith(
        "; no dump of rank 2 was found; no readable dump of torch's flight recorder: nccl_trace_rank_2"
    )
    alone = dumped(foreign)
    assert alone is not None
    assert alone.text == "no readable dump of torch's flight recorder: nccl_trace_rank_2"


def test_the_same_file_of_a_shared_folder_counts_once() -> None:
    again = [replaced(one, node_id="other") for one in BEHIND]

    assert "rank 2 is 1 collective behind" in text_of(*BEHIND, *again)


def test_ranks_with_two_different_files_are_not_compared() -> None:
    another = dump(2, (0, 0), path="/mnt/nccl_trace_rank_2")

    assert "do not differ" in text_of(*BEHIND, another)


def test_only_files_that_were_written_together_are_compared() -> None:
    """A process that dumped a minute before may have gone on."""
    earlier = dump(2, (0, 0, 0), written_at=WRITTEN_AT - 61.0)

    assert "do not differ" in text_of(*BEHIND[:2], earlier, BEHIND[3])
    assert "no dump of rank 2" in text_of(*BEHIND[:2], earlier, BEHIND[3])


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        [replace(JOBS[0], started_at=None)],
        [replace(JOBS[0], started_at=WRITTEN_AT + 1)],
        [replace(JOBS[0], started_at=WRITTEN_AT - 1)],  # its last call was made before
        [replace(JOBS[0], is_dead=True, ended_at=WRITTEN_AT - 61)],
    ],
    ids=["no job", "unknown start", "later job", "later than the call", "ended before"],
)
def test_a_dump_of_no_known_job_is_not_reported(jobs: list[Job]) -> None:
    assert dumped(*BEHIND, jobs=jobs) is None


def test_a_dump_of_yesterday_is_not_reported() -> None:
    jobs = [replace(JOBS[0], started_at=TAKEN_AT - 1e6)]
    old = [replaced(one, written_at=TAKEN_AT - 86_401) for one in BEHIND]
    ledgers = [replaced(one, ledgers=(replaced(one.ledgers[0], entered_at=TAKEN_AT - 86_500),)) for one in old]

    assert dumped(*ledgers, jobs=jobs) is None


def test_a_job_that_has_ended_meanwhile_counts() -> None:
    assert dumped(*BEHIND, jobs=[replace(JOBS[0], is_dead=True, ended_at=WRITTEN_AT + 5)])


@pytest.mark.parametrize(("started_at", "is_shown"), [(WRITTEN_AT - 1, True), (WRITTEN_AT + 1, False)])
def test_ranks_that_have_started_since_supersede_the_dumps(started_at: float, *, is_shown: bool) -> None:
    scene = Scene()
    rank = scene.actor("Trainer", owner_id=scene.driver().worker_id)
    rank.is_member(group_of(0, 0, 1))
    made = snapshot_with(*BEHIND, scene=scene)
    samples = [
        replace(
            sample,
            workers=tuple(
                replace(one, process=one.process and replaced(one.process, started_at=started_at))
                for one in sample.workers
            ),
        )
        for sample in made.samples
    ]

    assert (diagnose(replace(made, samples=tuple(samples))).dumped is not None) is is_shown


def test_the_class_of_the_actor_tells_jobs_apart() -> None:
    scene = Scene()
    driver = scene.driver()
    scene.actor("Trainer", owner_id=driver.worker_id)
    other = Job(job_id="02000000", entrypoint="python other.py", started_at=BEGAN_AT)

    found = dumped(*BEHIND, jobs=[*JOBS, other], scene=scene)
    assert found is not None
    assert found.jobs == (JOB,)
    assert diagnose(snapshot_with(*BEHIND, jobs=[*JOBS, other]), job="02000000").dumped is not None
