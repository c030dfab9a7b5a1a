"""A directory on the PYTHONPATH of processes that profile themselves."""
