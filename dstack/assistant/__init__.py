"""A server for coding assistants, by the Model Context Protocol: the diagnosis of a cluster as read-only tools."""
