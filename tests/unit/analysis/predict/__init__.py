"""Predictions from runs that did not hang."""
