"""The decisions of csr, without side effects."""
