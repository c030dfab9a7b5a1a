"""Approves what a kubelet may serve with: what its machine is attested to be, and nothing else."""
