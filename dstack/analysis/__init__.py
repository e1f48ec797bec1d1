"""Pure functions from a snapshot to its diagnosis: no clock, no I/O, no Ray."""
