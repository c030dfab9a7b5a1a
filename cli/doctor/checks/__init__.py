"""Each check judges what was seen. Pure."""
