.PHONY: interface-snapshots
interface-snapshots: env ## write the snapshots of the interface again; each changed line needs a CHANGELOG entry
	@WRITE_INTERFACE_SNAPSHOTS=1 $(BIN)/pytest -q -n0 tests/contract -k interface
