"""What findings say: sentences, calls on process groups, failures and restarts, and fixes."""
