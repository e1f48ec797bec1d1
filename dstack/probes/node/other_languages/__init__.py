"""Workers and drivers in Java and C++: which language they run, and their stacks through a tool of that language."""
