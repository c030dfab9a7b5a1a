"""Reads the messages of the services with the reader's key, here or in the watcher's pod."""
