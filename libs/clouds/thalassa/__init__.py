"""Thalassa Cloud: machines and VPCs. All that is known of its API is its public Go client and controller."""
