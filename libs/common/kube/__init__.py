"""The adapter to the Kubernetes API: the only place that knows its HTTP."""
