.PHONY: chaos
chaos: testbed ## random pairs of faults on real servers (ARGS="--runs 20 --seed 7"; ARGS="--help")
	@$(BIN)/python -m libs.testbed.control_plane.build >/dev/null
	@$(BIN)/python -m tests.chaos $(ARGS)
