"""Widgets and dialogs, independent of snapshots."""
