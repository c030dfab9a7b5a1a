"""Load balancers of OpenStack: annotations, plans, and the client of Octavia and Neutron."""
