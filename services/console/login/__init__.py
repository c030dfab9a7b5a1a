"""Logins of users with a bearer token of Kubernetes, and the sessions after them."""
