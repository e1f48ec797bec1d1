"""One room for each library: where it waits, how its state is read on a node, what its waits need, and its words."""
