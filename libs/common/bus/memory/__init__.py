"""The bus inside one process, with the semantics of JetStream and nothing to install."""
