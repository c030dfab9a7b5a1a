"""The bus inside one process: the same semantics as on JetStream, and nothing to install."""
