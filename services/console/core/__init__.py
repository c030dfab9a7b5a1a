"""What the console shows: records of Nodes and requests, findings, the overview and the history."""
