"""Messages of the Talos API. `make protos` generates `generated` from talos.proto."""
