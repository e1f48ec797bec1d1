"""The diagram of a finding: a cycle or a chain as a few numbered entries."""
