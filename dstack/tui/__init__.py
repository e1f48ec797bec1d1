"""The terminal interface; it is handed a source of snapshots and knows no cluster."""
