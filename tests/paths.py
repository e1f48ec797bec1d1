"""Paths of the repository, its examples, test programs and recorded snapshots."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PROGRAMS = ROOT / "tests" / "integration" / "programs"
RECORDED_CLUSTERS = ROOT / "tests" / "unit" / "recorded"
"""Snapshots of real clusters; those of the examples are in ``tests/recorded``."""
RECORDED_PROFILE = ROOT / "tests" / "recorded_profiles" / "training-ray-2.60.json.gz"
"""A minute of a training loop: three rollouts ask one reward model; each fourth step saves for 1.5 s (train.py:51)."""
RECORDED_CALLS = ROOT / "tests" / "recorded_calls" / "pipeline-ray-2.60.json.gz"
"""A snapshot of ``programs/drivers/pipeline.py`` with its history; only paths were changed."""
