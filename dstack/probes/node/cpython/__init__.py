"""CPython's memory from outside: bytes, objects, code, frames, and where each version keeps what."""
