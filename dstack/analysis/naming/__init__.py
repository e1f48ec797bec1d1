"""What things are called: Ray's names, Ray's libraries, and sentences about vertices."""
