"""Event loops, suspended coroutines, and what each of them awaits."""
