"""The contract between services: events, subjects and the data types inside them."""
