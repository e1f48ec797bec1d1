"""One sample, indexed: lookups by id, and which thread or coroutine runs which task."""
