"""What deploy/compose runs beside the real servers: who makes credentials, Talos machines, joining nodes."""
