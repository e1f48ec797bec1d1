"""Paths of the repository, its examples, test programs and recorded snapshots."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PROGRAMS = ROOT / "tests" / "integration" / "programs"
RECORDED_CLUSTERS = ROOT / "tests" / "unit" / "recorded"
"""Snapshots of real clusters; those of the examples are in ``tests/recorded``."""
