"""The operator's rules: compiled when the file is loaded, applied to the facts of each machine."""
