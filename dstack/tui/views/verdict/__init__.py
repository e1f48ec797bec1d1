"""The view of findings."""
