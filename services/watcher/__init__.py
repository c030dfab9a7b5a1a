"""The watcher: says how every Node is, who has gone, how complete that is, and who leads."""
