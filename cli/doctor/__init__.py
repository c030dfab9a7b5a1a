"""Checks an installation, and says how to mend it."""
