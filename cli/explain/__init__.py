"""`talos-ccm explain`: why something is decided as it is."""
