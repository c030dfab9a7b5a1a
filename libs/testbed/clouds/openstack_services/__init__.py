"""Neutron and Octavia themselves, from their packages, behind the simulated Keystone and Nova.

Octavia's provider is a no-op: it makes no load balancer, and moves objects from PENDING to ACTIVE.
"""
