"""The adapter to the Kubernetes API: the only package that uses its HTTP protocol."""
