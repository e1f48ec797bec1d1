"""Files of snapshots and recordings, and how files are written."""
