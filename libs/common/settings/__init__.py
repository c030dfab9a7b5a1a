"""What a process can be told, and where it is read from."""
