"""Load balancers of Hetzner Cloud: annotations, plans, and the client."""
