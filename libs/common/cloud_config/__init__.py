"""The --cloud-config file: its schema, parsing, selectors and ownership."""
