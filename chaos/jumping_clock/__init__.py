"""The wall clock of the services in a run of chaos; its folder is on their PYTHONPATH."""
