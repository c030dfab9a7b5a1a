"""The pure part of lifecycle: the evidence that a machine is gone, and what it proves."""
