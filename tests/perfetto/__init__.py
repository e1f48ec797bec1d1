"""Perfetto's own trace processor, to check traces with."""
