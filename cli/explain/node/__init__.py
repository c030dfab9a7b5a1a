"""`talos-ccm explain node`: whose a Node is, what stands in its way, and whether its machine is gone."""
