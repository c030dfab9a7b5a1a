"""`talos-ccm explain node`: ownership, problems, and whether the machine is gone."""
