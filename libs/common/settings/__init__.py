"""Settings of a process: flags, environment variables and the --cloud-config file."""
