"""The peer views, each in a package, and their base classes."""
