"""NATS as our chart runs it: keys, certificates and a server's configuration, made from the wiring."""
