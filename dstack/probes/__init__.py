"""The only code that touches a cluster or a process; everything private to Ray, CPython or py-spy is in here."""
