.PHONY: interface-snapshots
interface-snapshots: env ## write the snapshots of the interface again; check that the docs are still true
	@WRITE_INTERFACE_SNAPSHOTS=1 $(BIN)/pytest -q -n0 tests/contract -k interface
