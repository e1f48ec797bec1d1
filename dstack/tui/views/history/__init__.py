"""The view of all snapshots of this run and their differences."""
