"""Proves what the pages of docs/contributing promise, in a copy of the tree."""
