"""The objects that passed between the functions of a profile, as a table."""

from __future__ import annotations

from dstack.model.profile import Profile
from dstack.report.page.section import Section, render
from dstack.report.profile_text import endpoint_name, executed_in_words, heaviest_traffic
from dstack.words import size

MOST_ROWS = 20


def traffic_section(profile: Profile) -> Section | None:
    """The pairs of functions with most bytes; None if there was little."""
    traffic = heaviest_traffic(profile, MOST_ROWS)
    executed = executed_in_words(profile)
    body = render("traffic.html", traffic=traffic, executed=executed, size=size, name=endpoint_name)
    return Section("traffic", "Objects", body) if traffic else None
