"""A profile as text: its heaviest chains, each with its share, its time, and the change in the last half."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from dstack.analysis.index.shown_frames import MODULE
from dstack.analysis.stacks.iterations import Iterations, iterations_of
from dstack.analysis.stacks.profiles import Chain, chains_of, halves, total_us
from dstack.model.profile import Endpoint, PathStep, Profile, Sampled, State, Traffic
from dstack.report.rich_text import SafeText
from dstack.words import base_name, duration, listed, plural, short_duration, shortly, size

SHOWN_CHAINS = 10
LEAST_SHARE = 0.005
NOTABLE_POINTS = 5.0
"""A change of a share by less, in percentage points, is not shown."""
NOTABLE_QUEUE = 0.1
SHOWN_EDGES = 3
NOTABLE_BYTES = 1 << 20
"""Fewer bytes between two functions are not shown."""
ARROW = " → "
STATE_WORDS: Mapping[State, str] = {
    "runs": "runs",
    "sleeps": "sleeps",
    "waits": "waits",
    "queue": "waits in a queue",
    "resources": "waits for resources",
    "starts": "waits for a start",
    "outside": "waits for something outside Ray",
    "": "",
}
STYLES: dict[State, str] = {
    "runs": "green",
    "sleeps": "blue",
    "waits": "cyan",
    "queue": "yellow",
    "resources": "magenta",
    "starts": "magenta",
    "outside": "red",
    "": "",
}


def profile_summary(profile: Profile) -> str:
    """``30.0 s of driver train.py, in 150 samples of all nodes within 12 ms``; of one host without the last part."""
    roots = f" of {shortly(profile.roots)}" if profile.roots else ""
    spread = (
        f" of all nodes within {short_duration(spread_ms / 1e3)}" if (spread_ms := profile.coverage.spread_ms) else ""
    )
    return f"{profile.duration_s:.1f} s{roots}, in {plural(profile.coverage.rounds, 'sample')}{spread}"


def newest(recordings: Iterable[Sampled]) -> Profile | None:
    """The last profile; None without one."""
    return next((one for one in reversed(list(recordings)) if isinstance(one, Profile)), None)


def most_time_in_words(profile: Profile) -> str:
    """``62 % job.py:11 Reward.model → time.sleep, of 10 s``: the end of the heaviest chain, from the last own frame."""
    total, chains = total_us(profile), chains_of(profile)
    if not total or not chains:
        return ""
    steps = chains[0].end or chains[0].way
    own = [at for at, step in enumerate(steps) if step.is_frame and step.origin == "user" and step.line > 0]
    last = steps[own[-1] if own else -1 :]
    place = f"{base_name(last[0].file)}:{last[0].line} " if own else ""
    names = ARROW.join(step.name for step in last)
    return f"{_percent(chains[0].weight_us / total)} {place}{names}, of {duration(profile.duration_s)}"


def profile_shortfalls(profile: Profile) -> Iterator[str]:
    """What was not sampled as wanted, and failures."""
    coverage = profile.coverage
    rate_hz = coverage.rounds / profile.duration_s if profile.duration_s else 0.0
    if rate_hz < 0.7 * profile.rate_hz and profile.duration_s > 2:
        yield (
            f"{rate_hz:.2g} samples a second instead of {profile.rate_hz:g}: the samples took long, and dstack uses at "
            "most half of the time for them."
        )
    if coverage.unread_us:
        yield f"Nothing was read for {duration(coverage.unread_us / 1e6)}."
    if coverage.left_out_us:
        yield f"{duration(coverage.left_out_us / 1e6)} are left out: too many different paths."
    reasons = list(dict.fromkeys((one.reason, one.remedy or "") for one in profile.failures))
    for reason, remedy in reasons[:5]:
        yield f"Not read, or not always: {reason}. {remedy}".rstrip()
    if len(reasons) > 5:
        yield f"{len(reasons) - 5} further reasons are left out."
    yield from profile.notes


def print_profile(console: Console, profile: Profile) -> None:
    """Print the heaviest chains."""
    title = SafeText(f"{profile_summary(profile)}, {profile.address}, Ray {profile.ray_version}", "bold")
    console.print(title, soft_wrap=True)
    total = total_us(profile)
    chains = [chain for chain in chains_of(profile) if total and chain.weight_us >= LEAST_SHARE * total]
    if not chains:
        console.print(SafeText("Nothing was followed: no driver was read in any sample."))
    for number, chain in enumerate(chains[:SHOWN_CHAINS], 1):
        console.print()
        _print_chain(console, profile, number, chain, total)
    if rest := sum(chain.weight_us for chain in chains[SHOWN_CHAINS:]):
        console.print()
        console.print(
            SafeText(f"{_percent(rest / total, 1)} in {plural(len(chains) - SHOWN_CHAINS, 'more chain')}", "dim")
        )
    for found in iterations_of(profile):
        console.print()
        head, *others = steps_in_words(found)
        console.print(SafeText(f"Steps: {head}", "bold"), soft_wrap=True)
        for line in others:
            console.print(SafeText(f"    {line}"), soft_wrap=True)
    if lines := [*traffic_in_words(profile), *executed_in_words(profile)]:
        console.print()
    for line in lines:
        console.print(SafeText(line), soft_wrap=True)
    for line in profile_shortfalls(profile):
        console.print(SafeText(line, "yellow"))


def steps_in_words(found: Iterations) -> Iterator[str]:
    """How many iterations there were and how long they took; then what the long ones had more of."""
    until = f"-{found.last_line}" if found.last_line > found.place.line else ""
    place = f"{found.place.name} ({base_name(found.place.file)}:{found.place.line}{until})"
    yield (
        f"{plural(len(found.each), 'iteration')} of {place} in {found.root}: median {duration(found.median_us / 1e6)}, "
        f"longest {duration(found.longest.length_us / 1e6)}, {duration(found.longest.from_us / 1e6)} after the begin"
    )
    for one in found.extra:
        long, others = (duration(us / 1e6) if us >= 1000 else "none" for us in (one.long_us, one.others_us))
        long_ones = "The longest one had" if len(found.long) == 1 else f"The {len(found.long)} longest had on average"
        yield f"{long_ones} {long} instead of {others} in {_in_words(one.end).plain}"


def heaviest_traffic(profile: Profile, most: int) -> list[Traffic]:
    """The pairs with most bytes, without those that have few."""
    heavy = [one for one in profile.traffic if one.bytes >= NOTABLE_BYTES]
    return sorted(heavy, key=lambda one: -one.bytes)[:most]


def traffic_in_words(profile: Profile) -> Iterator[str]:
    """``At least 1.2 GiB in 340 objects from Loader.load to Trainer.step``, the heaviest first."""
    for one in heaviest_traffic(profile, SHOWN_EDGES):
        yield f"Data: {passed(one.objects, one.bytes)} from {endpoint_name(one.maker)} to {endpoint_name(one.asker)}"


def passed(objects: int, total_bytes: int) -> str:
    """``at least 1.2 GiB in 340 objects``."""
    return f"at least {size(total_bytes)} in {plural(objects, 'object')}"


def executed_in_words(profile: Profile) -> Iterator[str]:
    """``Calls executed: at least 812 of Loader, 405 of Trainer and 96 of functions``; the most frequent ones."""
    most = sorted(profile.executed, key=lambda one: -one.calls)[:SHOWN_EDGES]
    parts = [f"{one.calls:,} of {endpoint_name(one.by) if one.by.kind == 'actor' else 'functions'}" for one in most]
    if parts:
        yield f"Calls executed: at least {listed(parts)}"


def endpoint_name(end: Endpoint) -> str:
    """``Loader.load``, ``Loader`` if the method is not known, ``driver train.py``, ``prepare``."""
    if end.kind == "driver":
        return f"driver {end.name or f'of job {end.job_id}'}"
    if end.kind == "function":
        return end.name or "a function that was not seen"
    return ".".join(part for part in (end.name or "an actor", end.method) if part)


def _print_chain(console: Console, profile: Profile, number: int, chain: Chain, total: int) -> None:
    share = f"{100 * chain.weight_us / total:5.1f} %  {_seconds(chain, profile)}"
    head = Text.assemble((f"{number:2}. ", "dim"), (share, "bold"), "  ", _in_words(chain.end or chain.way))
    console.print(head, soft_wrap=True)
    indent = " " * 4
    way = _in_words((PathStep(chain.root), *chain.way)) if chain.end else Text(chain.root)
    console.print(Text.assemble(indent, ("from ", "dim"), way), soft_wrap=True)
    if remarks := list(_remarks(chain, profile)):
        console.print(Text.assemble(indent, ("; ".join(remarks), "dim")), soft_wrap=True)


def _seconds(chain: Chain, profile: Profile) -> str:
    """The time in seconds; with several roots, as an average of them."""
    return duration(chain.weight_us / 1e6 / max(1, len(profile.roots)))


def _remarks(chain: Chain, profile: Profile) -> Iterator[str]:
    first, last = halves(profile)
    if first.length_us and last.length_us:
        points = 100 * (chain.last_us / last.length_us - chain.first_us / first.length_us) / max(1, len(profile.roots))
        if abs(points) >= NOTABLE_POINTS:
            yield f"{points:+.0f} points in the last half"
    if chain.queued_us >= NOTABLE_QUEUE * chain.weight_us:
        yield f"{_percent(chain.queued_us / chain.weight_us)} of it queued behind others"
    if chain.heaviest_us < 0.9 * chain.weight_us:
        yield f"{_percent(chain.heaviest_us / chain.weight_us)} on this way"


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _in_words(steps: Sequence[PathStep]) -> Text:
    """``Reward.score (slow.py:7) → Reward.model (slow.py:11) → time.sleep``; without a module that calls a function."""
    parts = []
    for step, following in zip(steps, (*steps[1:], None), strict=True):
        if step.function == MODULE and following and following.is_frame:
            continue
        place = f" ({base_name(step.file)}:{step.line})" if step.file else ""
        parts.append(Text.assemble((SafeText(step.name).plain, STYLES[step.state]), (SafeText(place).plain, "dim")))
    return Text(ARROW).join(parts)
