"""The file of --cloud-config: what it may say, what it says, and which machines its rules are about."""
