"""Read-only clients of clouds, for the instance behind a Node. Each cloud has a folder."""
