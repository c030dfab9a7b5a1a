.PHONY: manifests test-deploy
manifests: testbed ## write what follows the service table, and render the manifests of deploy/k8s again
	@$(BIN)/python -m tools.service_table
	@$(BIN)/python -m libs.testbed.helm.renders

test-deploy: testbed ## the chart: lint, schemas of every Kubernetes, rights, a real API server (builds helm)
	@$(BIN)/python -m libs.testbed.control_plane.build
	@$(BIN)/pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/deploy $(ARGS)
