"""Reads Kubernetes, Talos and pods with the caller's credentials, for every command."""
