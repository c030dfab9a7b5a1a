"""Approves the serving certificates of kubelets, for names and addresses that their machines attest."""
