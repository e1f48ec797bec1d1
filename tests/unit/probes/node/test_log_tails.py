"""The ends of logs: whose files are found, which lines are kept, and what they are known to say."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from dstack.observed.node import MAX_LOG_LINES, LogKind, LogLine, LogTail
from dstack.probes.node.log_tails import TAIL_BYTES, LogFiles, lines_of
from tests.fuzzing.hostile_text import HOSTILE
from tests.processes import running

NODE, WORKER = "ab" * 28, "12" * 28
TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1038, in _bootstrap_inner
    self.run()
  File "/app/load.py", line 12, in fetch
    return parse(reply)
  File "/venv/lib/python3.11/site-packages/parser.py", line 3, in parse
    raise ValueError(text)
"""


def known(text: str, kind: LogKind) -> LogLine:
    """The only line of this kind."""
    (line,) = [line for line in lines_of(text, "stderr") if line.kind == kind]
    return line


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("Exception in thread Thread-3 (fetch):", "thread exception"),
        ("Task exception was never retrieved\nfuture: <Task finished name='Task-5'>", "asyncio exception"),
        ("Exception in callback Loader.next()\nhandle: <Handle>", "asyncio exception"),
        ("Error in atexit._run_exitfuncs:", "exit exception"),
        ("Exception ignored in: <function Loader.__del__>", "exit exception"),
    ],
)
def test_a_traceback_is_one_line_with_its_header_and_its_innermost_own_place(header: str, kind: LogKind) -> None:
    line = known(f"begin\n{header}\n{TRACEBACK}ValueError: bad reply\nnext\nlast\n", kind)

    assert line.text == f"{header.splitlines()[0].rstrip(':')}: ValueError: bad reply"
    assert (line.file, line.line) == ("/app/load.py", 12)
    assert line.lines_after == 2


def test_of_chained_tracebacks_the_last_exception_counts() -> None:
    chain = f"{TRACEBACK}KeyError: 3\n\nDuring handling of the above exception, another exception occurred:\n\n"

    line = known(f"{chain}{TRACEBACK}RuntimeError: CUDA error: invalid argument\nlast\n", "CUDA")

    assert line.text == "RuntimeError: CUDA error: invalid argument"
    assert len(lines_of(f"{chain}{TRACEBACK}RuntimeError: x\nlast\n", "stderr")) == 2


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("node1:4:9 [0] NCCL WARN Call to connect failed", "NCCL"),
        ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "NCCL"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("OSError: [Errno 28] No space left on device", "disk full"),
        ("OSError: [Errno 24] Too many open files", "no descriptors"),
        ("socket.gaierror: [Errno -2] Name or service not known", "name resolution"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "refused connection"),
        ("requests.exceptions.ReadTimeout: HTTPConnectionPool: Read timed out.", "no answer"),
        ("429 Client Error: Too Many Requests for url", "rate limit"),
        ("Fatal Python error: Segmentation fault", "fatal error"),
        ("2026-11-29 03:12:40,123 ERROR the index is broken", "error"),
        ("*** SIGSEGV received at time=1795919560 on cpu 0 ***", "fatal error"),
        ("*** SIGTERM received at time=1795919560 on cpu 0 ***", "plain"),
        ("[WARNING] slow disk", "warning"),
        ("INFO no ERROR-free day", "plain"),
        ("step 12 of 100", "plain"),
    ],
)
def test_known_lines_have_a_kind(text: str, kind: LogKind) -> None:
    (line,) = lines_of(text, "stdout")

    assert line.kind == kind


def test_the_same_text_is_counted_but_for_its_numbers_with_the_time_it_took() -> None:
    text = "".join(f"2026-11-29 03:12:{second},5 WARNING retry {second} of download\n" for second in range(10, 40, 10))

    line = known(f"{text}last\n", "warning")

    assert (line.count, line.text[-20:]) == (3, "retry 30 of download")
    assert line.at is not None
    assert line.first_at is not None
    assert line.at - line.first_at == 20
    assert time.localtime(line.at)[:6] == (2026, 11, 29, 3, 12, 30)


def test_the_last_lines_are_kept_and_known_ones_before_them() -> None:
    names = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")
    text = "Connection refused\n" + "".join(f"loads {name}\n" for name in names)

    assert [line.text for line in lines_of(text, "stdout")] == [
        "Connection refused",
        *(f"loads {name}" for name in names[-5:]),
    ]


def test_progress_bars_colours_and_marks_of_ray_are_left_out() -> None:
    text = "\x1b[31mred\x1b[0m\n:actor_name:Loader\n 10%|#  |\r 20%|## |\n:job_id:01000000\n\n"

    assert [line.text for line in lines_of(text, "stderr")] == ["red", "20%|## |"]


def test_lines_that_a_driver_prints_for_workers_are_told_apart() -> None:
    one, other = "\x1b[36m(A pid=7)\x1b[0m ", "\x1b[36m(B pid=8, ip=10.0.0.2)\x1b[0m "
    raised = f"Exception in thread T:\n{TRACEBACK}ValueError: x".splitlines()
    text = "\n".join(line for each in raised for line in (one + each, other + "INFO works"))

    (line,) = [line for line in lines_of(text, "stdout") if line.kind != "plain"]

    assert (line.writer, line.text) == ("(A pid=7)", "Exception in thread T: ValueError: x")
    assert (line.kind, line.file, line.line) == ("thread exception", "/app/load.py", 12)


def test_of_rays_own_code_only_warnings_and_errors_are_kept() -> None:
    stamp = "[2026-11-29 03:12:40,123 {} 7 8] x.cc:1: "
    text = "\n".join(stamp.format(level) + f"{level} happened" for level in "IWEF")

    assert [line.text[-10:] for line in lines_of(text, "raylet")] == ["W happened", "E happened", "F happened"]
    assert {line.kind for line in lines_of(text, "raylet")} == {"plain"}


def test_secrets_are_masked_before_a_line_travels() -> None:
    (line,) = lines_of("GET https://bob:s3cr3t@host/x?token=s3cr3t with Authorization: Bearer s3cr3t", "stdout")

    assert "s3cr3t" not in line.text
    assert "host/x" in line.text


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_give_few_short_lines(seed: int) -> None:
    chance = random.Random(seed)
    parts = [
        *HOSTILE,
        "Traceback (most recent call last):",
        "  File ",
        "Exception in thread ",
        "\r",
        "\n",
        "(a pid=1) ",
    ]
    text = "".join(chance.choice(parts) + chance.choice("\n \r:") for _ in range(300))

    lines = lines_of(text, chance.choice(("stdout", "raylet")))

    assert len(lines) <= MAX_LOG_LINES
    assert all(len(line.text) <= 500 and line.lines_after >= 0 for line in lines)


# Files

PRINTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print('from the child', flush=True); time.sleep(1000)"],
                         stdout=open(sys.argv[1], "w"))
print("CUDA error: lost", file=sys.stderr, flush=True)
print("ready", child.pid, flush=True)
time.sleep(1000)
"""


def read(pid: int, *children: int) -> dict[tuple[int | None, str], LogTail]:
    files = LogFiles({}, time.monotonic() + 10)
    files.read_worker(WORKER, pid, children)
    return {(tail.pid, tail.stream): tail for tail in files.tails}


def test_outputs_of_a_process_and_its_child_are_read_also_from_a_deleted_file(tmp_path: Path) -> None:
    output, of_child = tmp_path / "output", tmp_path / "of_child"
    with running([sys.executable, "-c", PRINTS, str(of_child)], dict(os.environ), output) as process:
        process.wait_for_line("ready", deadline_s=30)
        child = int((process.line("ready ") or "").split()[1])
        while not of_child.read_text():
            time.sleep(0.01)
        of_child.unlink()

        found = read(process.pid, child)

    (own,) = (tail for (pid, _), tail in found.items() if pid == process.pid)
    assert "CUDA error: lost" in [line.text for line in own.lines]
    assert [line.text for line in found[child, "stdout"].lines] == ["from the child"]
    assert (own.worker_id, own.path) == (WORKER, str(output))


def test_a_pipe_keeps_its_content() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"for its reader")
    saved = os.dup(1)
    try:
        os.dup2(writer, 1)
        assert read(os.getpid()).get((os.getpid(), "stdout")) is None
    finally:
        os.dup2(saved, 1)
        os.close(saved)

    assert os.read(reader, 100) == b"for its reader"
    os.close(reader)
    os.close(writer)


def test_a_worker_that_has_ended_is_found_by_its_name_and_the_raylets_logs_by_theirs(tmp_path: Path) -> None:
    (tmp_path / f"worker-{WORKER}-01000000-7.err").write_text("No space left on device\n")
    (tmp_path / f"worker-{'34' * 28}-01000000-8.err").write_text("of another one\n")
    (tmp_path / "raylet.err").write_text(
        "[2026-11-29 03:12:40,1 E 7 8] w.cc:1: have not registered within the timeout\n"
    )
    (tmp_path / "runtime_env_setup-01000000.log").write_text("Could not resolve host: pypi\n")
    files = LogFiles({NODE: str(tmp_path)}, time.monotonic() + 10)

    files.read_gone(NODE, WORKER, 7)
    files.read_gone(NODE, WORKER, 7)
    files.read_node(NODE)
    files.read_node("ef" * 28)

    assert [(tail.stream, tail.worker_id or tail.node_id, tail.lines[0].kind) for tail in files.tails] == [
        ("stderr", WORKER, "disk full"),
        ("raylet", NODE, "worker start"),
        ("environment", NODE, "name resolution"),
    ]


def test_what_workers_printed_that_have_ended_is_read_with_the_logs_of_their_node(tmp_path: Path) -> None:
    for number, pid in enumerate((2**22 + 1, 2**22 + 2, os.getpid())):
        path = tmp_path / f"worker-{number:056x}-01000000-{pid}.err"
        path.write_text(f"ImportError: no module {'abc'[number]}\n")
        os.utime(path, (time.time() - 10 + number, time.time() - 10 + number))
    (tmp_path / f"worker-{'9' * 56}-01000000-{2**22 + 3}.err").touch()
    files = LogFiles({NODE: str(tmp_path)}, time.monotonic() + 10)

    files.read_node(NODE)

    assert [(tail.pid, tail.lines[0].text) for tail in files.tails] == [
        (2**22 + 2, "ImportError: no module b"),
        (2**22 + 1, "ImportError: no module a"),
    ]


def test_of_a_large_file_only_the_end_is_read_from_a_whole_line_on(tmp_path: Path) -> None:
    path = tmp_path / f"worker-{WORKER}-01000000-7.out"
    path.write_text("CUDA error: first\n" + "x" * 2 * TAIL_BYTES + "\nlast\n")
    files = LogFiles({NODE: str(tmp_path)}, time.monotonic() + 10)

    files.read_gone(NODE, WORKER, 7)

    (tail,) = files.tails
    assert ([line.text for line in tail.lines], tail.is_cut) == (["last"], True)
    assert tail.written_at == pytest.approx(path.stat().st_mtime)


def test_after_the_deadline_no_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "raylet.err").write_text("[2026-11-29 03:12:40,1 E 7 8] w.cc:1: x\n")
    files = LogFiles({NODE: str(tmp_path)}, time.monotonic() - 1)

    files.read_node(NODE)

    assert files.tails == []
