"""The actors of Ray Tune; seen on Ray 2.46 and 2.60."""

from __future__ import annotations

from dstack.libraries.recogniser import Recogniser

PARTS = (Recogniser(r"ImplicitFunc", "Tune trial", which=" {id}", work=("train", "step of")),)
