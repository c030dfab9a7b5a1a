"""A directory that is put on the path of processes which shall profile themselves."""
