"""The checks: each evaluates one aspect of the installation snapshot. Pure."""
