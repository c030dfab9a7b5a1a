"""The client of OpenStack: Keystone by openstacksdk, Nova and Neutron as far as instances need them."""
