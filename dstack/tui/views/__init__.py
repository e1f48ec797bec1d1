"""The peer views, one package each."""
