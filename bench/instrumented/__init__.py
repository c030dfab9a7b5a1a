"""A directory on the PYTHONPATH of our services in a bench: they count, and profile themselves."""
