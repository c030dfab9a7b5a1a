"""`make compose-local`: an engine, compose and images on a Debian machine without an image registry."""
