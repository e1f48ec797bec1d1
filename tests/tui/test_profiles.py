"""Profiles in the Flame view: alone, in the order of time, around a function, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dstack.cli.saved_files import open_files
from dstack.files.document_file import to_json
from dstack.model.profile import PathStep, RootTime
from dstack.tui.app import DstackApp
from dstack.tui.snapshot_sources import Files, OpenedRecording
from dstack.tui.views.flame_functions import Functions
from dstack.tui.views.flame_view import FlameView
from dstack.tui.widgets.chart import Chart
from dstack.tui.widgets.outline import Outline
from dstack.words import UNSEEN
from tests.fuzzing.hostile_text import HOSTILE
from tests.tui.pilots import screen_text, search, until
from tests.tui.pinned import require_pinned
from tests.tui.test_flame_data import BEFORE, drawn, in_flame
from tests.tui.test_flame_view import Body, figures, labels
from tests.tui.test_stacks_view import press
from tests.unit.analysis.stacks.made_profiles import FILE, GET, ON_CPU, QUEUE, SCORE, SLEEP, in_turn, line, profile_of

MODEL, UPDATE = (SCORE, line(9, "Reward.model"), SLEEP), PathStep("update")


def steps(*seconds: float) -> list[RootTime]:
    """Steps of a training loop, each with so many seconds of a wait for rewards, and one second of an update."""
    turns: list[tuple[float, tuple[PathStep, ...]]] = []
    for one in seconds:
        turns += [(one / 2, (line(25), GET, *MODEL)), (one / 2, (line(25), GET, QUEUE, *MODEL))]
        turns += [(1, (line(26), GET, UPDATE, line(22, "update"), ON_CPU))]
    return in_turn(*turns)


SOURCES = {FILE: {24: "for step in range(9):", 25: "    scores = ray.get(rewards)", 26: "    ray.get(update)"}}
PROFILE = replace(profile_of(steps(1, 1, 1, 9), began_at=1_700_000_100), sources=SOURCES)
SLOW = OpenedRecording("slow.json", PROFILE)
LOOP = OpenedRecording("loop.json", replace(profile_of(steps(1, 1, 1, 9, 1, 1)), sources=SOURCES))
FAST = OpenedRecording("fast.json", profile_of(steps(1, 1)))


def around(view: FlameView, side: str) -> list[list[str]]:
    """The names of the callers or callees of the selected function, from it on."""
    return [[cell.label for cell in row] for row in view.query_one(f"#{side}", Chart)._icicle.rows]


def in_profile(body: Body, *opened: OpenedRecording, size: tuple[int, int] = (120, 24)) -> None:
    in_flame(body, Files("profiles", []), opened or (SLOW,), size)


def test_a_profile_opens_from_the_driver_down_with_shares_and_states() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "Profile slow.json (16 s)", "widest first")
        assert labels(view)[:4] == [
            ["all"],
            ["driver train.py"],
            ["main", "main"],
            ["ray.get", "ray.get"],
        ]
        assert "main:25 12 s  75 %" in screen_text(app)
        await press(pilot, "G")
        assert "time.sleep  sleeps" in figures(view)
        assert "6.0 s of 16 s = 38 %  in all 2 places 12 s = 75 %" in figures(view)
        await press(pilot, "g")
        assert "75 %     12 s  Reward.model  /srv/app/train.py:9" in figures(view), "the most time of its own"
        await press(pilot, "j", "j")
        assert "main  /srv/app/train.py:25  scores = ray.get(rewards)" in figures(view)
        await search(pilot, "reward.model")
        assert screen_text(app).count("*Reward.model") == 2

    in_profile(body)


def test_z_draws_the_order_of_time_and_a_zoom_knows_which_of_the_same() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "widest first")
        await press(pilot, "z")
        await drawn(pilot, view, "in the order of time")
        assert [cell.weight for cell in view.icicle.rows[2]] == [one * 1_000_000 for one in (1, 1, 1, 1, 1, 1, 9, 1)]
        await press(pilot, "j", "j", "l", "l", "l", "l", "l", "l", "enter")
        assert view.icicle.weight == 9_000_000
        assert len(view.icicle.rows[0]) == 1
        await press(pilot, "z")
        await drawn(pilot, view, "widest first")
        assert view.icicle.weight == 16_000_000

    in_profile(body)


def test_c_lists_functions_with_the_callers_and_callees_of_the_selected_one() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "widest first")
        await search(pilot, "Reward.model")
        await press(pilot, "n")
        assert "matched 75.0 %" in screen_text(app), "not the sum of both cells with it and what is below them"
        await press(pilot, "escape", "c")
        await drawn(pilot, view, "Functions")
        await until(pilot, lambda: "total 12 s = 75 %  self 0 s = 0 %" in figures(view))
        table = view.query_one(Functions).query_one(Outline)
        assert [line.text.plain.split("  ")[1].strip() for _, line in table.visible_lines][:2] == ["0.0 %", "0.0 %"]
        assert around(view, "callees") == [["Reward.model"], ["time.sleep"]]
        assert around(view, "callers")[:3] == [
            ["Reward.model"],
            ["Reward.score"],
            ["Reward.score: queued behind", "ray.get"],
        ]
        await press(pilot, "enter", "j", "enter")
        assert figures(view) == "time.sleep  sleeps\ntotal 12 s = 75 %  self 12 s = 75 %", (
            "a callee is the selected function"
        )
        await press(pilot, "m", "g")
        assert figures(view).startswith("time.sleep"), "the most time of its own"
        await press(pilot, "backspace")
        await drawn(pilot, view, "Profile slow.json (16 s)")
        assert labels(view)[1] == ["driver train.py"]

    in_profile(body)


def test_v_compares_the_halves_of_one_profile_and_p_shows_one_of_them() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "widest first")
        await press(pilot, "v")
        await drawn(pilot, view, "last half compared with the first half", "Width: now")
        assert "+ main:25" in screen_text(app)
        await press(pilot, "v", "p")
        await drawn(pilot, view, "last half  widest first")
        assert view.icicle.weight == 8_000_000
        await press(pilot, "p", "p")
        await drawn(pilot, view, "Profile slow.json (16 s)  widest first")

    in_profile(body)


def test_two_profiles_are_compared_and_a_recording_beside_them_is_not() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "Profile slow.json (16 s) compared with fast.json (4.0 s)")
        await press(pilot, "j", "j", "j", "j")
        assert "+ from 25 % (1.0 s of 4.0 s) to 38 % (6.0 s of 16 s): +12.5 points" in figures(view)
        await press(pilot, "v", "less_than_sign")
        await drawn(pilot, view, "Profile fast.json (4.0 s)")
        await press(pilot, "less_than_sign", "z", "c", "p", "b", "W")
        await drawn(pilot, view, "before.json.gz (20 s)")

    in_profile(body, BEFORE, FAST, SLOW)


def test_the_lines_of_a_profile_have_their_time_and_open_in_an_editor() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "widest first")
        await press(pilot, "L")
        await drawn(pilot, view, "Lines of")
        text = screen_text(app)
        assert "Lines of Profile slow.json (16 s)" in text
        assert " 75.0 %         ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒         25      scores = ray.get(rewards)" in text
        assert " 25.0 %  25.0 % █████                   22  not read" in text
        assert "24  for step in range(9):" in text
        assert "Steps" not in text, "the first iteration began before, the last one has not ended"
        await press(pilot, "j", "j", "j", "j", "j", "j")
        assert view.to_open() == ("/srv/app/train.py", 25)
        await press(pilot, "y")
        assert "ray.get(rewards)" in app.clipboard
        await search(pilot, "scores")
        assert "24  for step" not in screen_text(app)
        await press(pilot, "escape", "p")
        await drawn(pilot, view, "last half")
        assert " 87.5 %" in screen_text(app), view.to_export()
        await press(pilot, "L")
        await drawn(pilot, view, "widest first")
        assert "driver train.py" in screen_text(app)

    in_profile(body)


def test_the_steps_of_a_loop_are_above_its_lines() -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "widest first")
        await press(pilot, "L")
        await drawn(pilot, view, "Lines of")
        text = " ".join(screen_text(app).split())
        assert "Steps: 4 iterations of main (train.py:25-26) in driver train.py: median 2.0 s, longest 10 s" in text
        assert "▂▂█▂" in text
        assert "The longest one had 9.0 s instead of 1.0 s in Reward.score" in text
        assert view.to_open() == ("/srv/app/train.py", 25)

    in_profile(body, LOOP)


def test_hostile_names_and_lines_are_harmless() -> None:
    evil = (PathStep(HOSTILE), line(1, HOSTILE, HOSTILE), PathStep(HOSTILE, state="queue"))
    turns = [(1.0, (line(number, HOSTILE, HOSTILE), *evil)) for number in (1, 2) * 6]
    profile = replace(profile_of(in_turn(*turns, root=HOSTILE)), sources={HOSTILE: {1: HOSTILE}})

    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "widest first")
        for key in ("j", "z", "c", "c", "c", "L"):
            await press(pilot, key)
            await app.workers.wait_for_complete()
            await press(pilot, "j", "j", "y")
            assert not UNSEEN.search(screen_text(app).replace("\n", ""))
            assert not UNSEEN.search((view.to_export() or "").replace("\n", ""))
        assert "Steps: " in screen_text(app)

    in_profile(body, OpenedRecording(HOSTILE, profile), size=(160, 40))


def test_a_profile_file_is_opened_by_its_schema(tmp_path: Path) -> None:
    (tmp_path / "slow.json").write_bytes(to_json(PROFILE))

    assert open_files([str(tmp_path)]).recordings == [("slow.json", SLOW.recording)]


@pytest.mark.parametrize("name", ["profile", "profile-in-time", "profiles-compared", "profile-lines"])
def test_the_screen_matches_its_picture(name: str) -> None:
    async def body(app: DstackApp, pilot: Pilot[Any], view: FlameView) -> None:
        await drawn(pilot, view, "Profile")
        if name == "profile-in-time":
            await press(pilot, "z")
            await drawn(pilot, view, "in the order of time")
        if name == "profile-lines":
            await press(pilot, "L")
            await drawn(pilot, view, "Lines of")
        await press(pilot, "j", "j", "j")
        await require_pinned(app, pilot, name)

    opened = {"profiles-compared": (FAST, SLOW), "profile-lines": (LOOP,)}
    in_profile(body, *opened.get(name, (SLOW,)))
