"""The pure part of metadata: states of Nodes and requests, their next steps, and what machines prove."""
