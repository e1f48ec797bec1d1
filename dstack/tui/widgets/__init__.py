"""Widgets and dialogs that know nothing of snapshots."""
