"""`talos-ccm explain`: why a service decides as it does."""
