"""Which step a Service's load balancer needs next. Pure: no I/O, no clock."""
