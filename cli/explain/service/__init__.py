"""`talos-ccm explain service`: whose Service it is, and what its load balancer waits for."""
