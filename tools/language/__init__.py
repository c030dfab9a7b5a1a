"""The check of names and texts that `make lint` runs."""
