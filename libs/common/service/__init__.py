"""The process around the services: start, health, readiness and shutdown."""
