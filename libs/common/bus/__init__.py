"""The message bus: its protocol, publishing, consuming and caching, and the adapters for NATS and memory."""
