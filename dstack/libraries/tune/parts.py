"""The actors of Ray Tune; seen on Ray 2.46 and 2.60."""

from __future__ import annotations

from dstack.libraries.recogniser import Recogniser
from dstack.observed.call_site import caller

PARTS = (Recogniser(r"ImplicitFunc", "Tune trial", which=" {id}", work=("train", "step of")),)
ENDLESS = (caller("/ray/air/execution/_internal/actor_manager.py", "next", "Ray 2.60"),)
"""Where the loop of Tune's trials polls for the next event."""
