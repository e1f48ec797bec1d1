"""Pages of random and of large snapshots: made without errors, bounded, and without any element from hostile text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.bench_report import ATTEMPTS, SHAPES
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks, WeightedTree
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.cluster_activity import activity_of
from dstack.files.snapshot_file import load
from dstack.model.profile import Endpoint, PathStep, Traffic
from dstack.model.snapshot import Snapshot
from dstack.report.page.flame_section import Flame, boxes_of, colour_of
from dstack.report.page.pages import flame_page, report_page, sampled_page
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import ATTACKED, HOSTILE_TO_PAGES, PAGE_ATTACKS, hostile
from tests.tui.sources import recorded
from tests.unit.analysis.stacks.made_profiles import ON_CPU, in_turn, line, profile_of
from tests.unit.analysis.stacks.test_hot_lines import PROFILE
from tests.unit.report.stacks import GET, STACKS, TRAIN, TWO_RANKS
from tests.unit.support.large_histories import with_history
from tests.unit.support.random_snapshots import attacking_snapshots, related_snapshots

MAX_BYTES = 3_600_000
WITHOUT_CONTENT = ("meta", "input", "br", "hr", "wbr", "col")


class Elements(HTMLParser):
    """Fails at the first element, attribute or declaration that cannot be the page's own."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.data: list[str] = []
        self._is_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("img", "iframe", "base", "object", "embed", "link", "form"), tag
        assert ATTACKED not in tag
        for name, value in attrs:
            assert ATTACKED not in name
            assert not name.startswith("on"), name
            assert name not in ("src", "srcdoc", "action", "formaction"), name
            assert name != "href" or (value or "").startswith("#"), value
            assert name != "style" or ATTACKED not in (value or ""), value
        if tag not in WITHOUT_CONTENT:
            self.open.append(tag)
        self._is_data = ("type", "application/json") in attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._is_data = False

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def page_of(snapshot: Snapshot, *before: Snapshot) -> str:
    return report_page(AnalysedSnapshot.of(snapshot), [AnalysedSnapshot.of(one) for one in before]).decode()


def require_own_elements(page: str) -> None:
    """Every element is the page's own, all are closed, and the data of the charts is JSON."""
    found = Elements()
    found.feed(page)
    found.close()
    assert found.open == []
    for data in found.data:
        json.loads(data)
        assert "<" not in data


@given(snapshot=st.one_of(related_snapshots(), attacking_snapshots(sorted(PAGE_ATTACKS.values()))))
@examples(100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_pages_of_random_snapshots_have_only_their_own_elements(snapshot: Snapshot) -> None:
    require_own_elements(page_of(snapshot, snapshot))


@pytest.mark.parametrize("name", ["queue-ray-2.60", "serve-deadlock"])
def test_attacks_in_every_text_make_no_element(name: str) -> None:
    snapshot = hostile(with_history(recorded(name)), HOSTILE_TO_PAGES)

    require_own_elements(page_of(snapshot, replace(snapshot, samples=())))


def test_the_test_would_notice_an_element() -> None:
    page = page_of(recorded("queue-ray-2.60"))

    for attack in ("script", "image", "vector", "element", "frame", "base"):
        with pytest.raises(AssertionError):
            require_own_elements(page.replace("<main>", f"<main>{PAGE_ATTACKS[attack]}"))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_page_of_a_thousand_workers_is_bounded(shape: str) -> None:
    snapshot = with_history(SHAPES[shape](1_000), ATTEMPTS)

    assert len(page_of(snapshot)) < MAX_BYTES


def test_the_page_of_a_small_snapshot_is_small() -> None:
    assert len(page_of(load(RECORDED / "two_actors.json.gz"))) < 250_000


def test_equal_beginnings_share_a_box_and_the_widest_are_leftmost() -> None:
    found = boxes_of(WeightedTree(TWO_RANKS))

    assert [(box.step.name, box.depth, box.parent, box.left, box.weight) for box in found.boxes] == [
        ("actor Trainer", 0, -1, 0, 8),
        ("rank 1", 1, 0, 0, 5),
        ("train", 2, 1, 0, 5),
        ("rank 0", 1, 0, 5, 3),
        ("train", 2, 3, 5, 3),
        ("ray.get", 3, 4, 5, 3),
    ]
    assert (found.total, found.is_cut) == (8, False)


@given(STACKS)
def test_boxes_are_within_those_above_them_and_beside_each_other(stacks: WeightedStacks) -> None:
    found = boxes_of(WeightedTree(stacks))
    ends: dict[int, int] = {}
    for index, box in enumerate(found.boxes):
        parent = found.boxes[box.parent] if box.parent >= 0 else None
        assert box.parent < index
        assert box.depth == (parent.depth + 1 if parent else 0)
        begin, end = (parent.left, parent.left + parent.weight) if parent else (0, found.total)
        assert max(begin, ends.get(box.parent, 0)) <= box.left <= box.left + box.weight <= end
        ends[box.parent] = box.left + box.weight
    assert found.total == stacks.weight


def test_the_narrowest_boxes_are_left_out() -> None:
    found = boxes_of(WeightedTree(TWO_RANKS), 4)

    assert [(box.step.name, box.parent, box.weight) for box in found.boxes] == [
        ("actor Trainer", -1, 8),
        ("rank 1", 0, 5),
        ("train", 1, 5),
        ("rank 0", 0, 3),
    ]
    assert found.is_cut


def test_colours_show_the_origin() -> None:
    assert colour_of(PathStep("group"))[1:3] == colour_of(PathStep("group"))[3:5]
    assert (
        len({colour_of(PathStep("f", "f.py", 1, "f", origin)) for origin in ("user", "ray", "stdlib", "library")}) == 4
    )
    assert re.fullmatch("#[0-9a-f]{6}", colour_of(TRAIN))


def test_the_page_needs_nothing_else_and_escapes_every_name() -> None:
    hostile = "</script><script>window.hacked = 1</script>"
    stacks = WeightedStacks(hostile, "samples", (WeightedStack((hostile, "\ud800"), (TRAIN, GET), 3),))

    page = flame_page([Flame(hostile, stacks)], hostile, hostile).decode()

    assert hostile not in page
    tags = re.sub(r"<script.*?</script>", "<script>", page, flags=re.DOTALL)
    assert re.findall(r"<(?:link|img|iframe)|src=|href=|url\(", tags) == []
    assert re.findall(r"<script[^>]*src", page) == []
    assert "default-src 'none'" in page
    assert "unsafe-inline" not in page


def test_no_stacks_make_a_page() -> None:
    assert b"Nothing" in flame_page([Flame("Nothing", WeightedStacks("empty", "samples", ()))], "Nothing")


def test_a_profile_has_a_table_of_objects_if_there_were_many_bytes() -> None:
    profile = profile_of(in_turn((1, (line(5), ON_CPU))))
    attack = Endpoint("actor", PAGE_ATTACKS["script"], "load")
    heavy = replace(profile, traffic=(Traffic(attack, Endpoint("driver", "train.py"), 340, 1 << 30),))
    page = sampled_page(heavy).decode()
    Elements().feed(page)

    assert "<td>1.0 GiB</td><td>340</td>" in page
    assert 'id="traffic"' in page
    assert 'id="traffic"' not in sampled_page(profile).decode()


def test_the_heading_says_where_most_time_went_and_leads_to_it() -> None:
    analysed = AnalysedSnapshot.of(load(RECORDED.parents[1] / "docs" / "case-studies" / "register_center.json.gz"))

    assert '<a href="#critical-path">81 % Register.peers, of the critical path of an iteration, 2.2 s</a>' in (
        report_page(analysed).decode()
    )
    profiled = report_page(analysed, (), [("profile", PROFILE)]).decode()
    assert '<a href="#lines">60 % rewards.py:12 model → time.sleep, of 10 s</a>' in profiled
    assert 'id="lines"' in profiled
    unread = report_page(analysed, (), [("profile", profile_of(in_turn((1, (ON_CPU,)))))]).decode()
    assert '<a href="#flame">100 % on CPU, of 1.0 s</a>' in unread


def test_the_heading_counts_what_runs_as_the_terminal_does() -> None:
    analysed = AnalysedSnapshot.of(load(RECORDED / "case_studies" / "slow_leaves.json.gz"))

    assert f"<dd>{activity_of(analysed).running:,} running, " in report_page(analysed).decode()
