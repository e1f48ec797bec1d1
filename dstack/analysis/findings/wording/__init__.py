"""What findings say: narration, process groups, failures, restarts, and fixes."""
