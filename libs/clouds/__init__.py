"""Read-only clients of clouds: what a cloud knows of the instance behind a Node. One folder a cloud."""
