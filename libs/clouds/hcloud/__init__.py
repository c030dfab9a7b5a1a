"""The client of the Hetzner Cloud API, as far as instances need it (https://docs.hetzner.cloud)."""
