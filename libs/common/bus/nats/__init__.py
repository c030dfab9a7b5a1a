"""The bus on NATS JetStream: the only place that knows NATS."""
