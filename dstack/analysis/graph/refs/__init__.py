"""What produces the value of an ObjectRef, and which refs an unreadable process may wait for."""
