"""Pure core of routes: what a network should have, and the next step towards it."""
