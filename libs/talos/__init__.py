"""The adapter to the Talos API: the only place that knows gRPC and COSI."""
