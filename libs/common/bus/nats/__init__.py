"""The bus on NATS JetStream: the only package that uses NATS."""
