"""The rules of ipam: which blocks are free, what ends a claim, which pools serve a Node."""
