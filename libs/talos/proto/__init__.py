"""Messages of the Talos API: the .proto files are ours, `generated` is made from them by `make protos`."""
