"""`talos-ccm explain csr`: why csr approves, denies or waits."""
