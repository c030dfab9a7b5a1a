"""Makes a Node say what its machine says: labels, addresses, providerID, taint, and why it still waits."""
