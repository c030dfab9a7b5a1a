"""What the services' messages tell, asked with the reader's key: here, or in the watcher's pod."""
