"""The wait-for graph of one sample: one module for each kind of dependency, which adds vertices and waits."""
