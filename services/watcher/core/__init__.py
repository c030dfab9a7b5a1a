"""The pure part of the watcher: what to publish, in which order, and with which epoch."""
