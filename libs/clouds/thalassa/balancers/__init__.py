"""Load balancers of Thalassa Cloud: annotations, plans, and the client."""
