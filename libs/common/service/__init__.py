"""What surrounds the services in a process: start, health, readiness, an orderly end."""
