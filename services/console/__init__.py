"""console: a read-only web page about the flow."""
