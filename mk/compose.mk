COMPOSE := docker compose --project-directory deploy/compose
KIND_FOLDER := deploy/compose/kind

.PHONY: compose-up compose-down compose-local kind-up kind-down
compose-up: ## a cluster of containers, nodes simulated, with Grafana (needs an engine; NODES=50)
	@deploy/compose/need.sh compose-up docker compose
	@$(COMPOSE) up --detach --build --wait --wait-timeout 300 \
	  || { $(COMPOSE) ps --all; echo "compose-up: not everything became healthy; see: $(COMPOSE) logs" >&2; exit 1; }
	@$(COMPOSE) logs --no-log-prefix nodes
	@echo 'Live console: http://127.0.0.1:10467'
	@echo 'Grafana: http://127.0.0.1:3000   kubeconfig: $(COMPOSE) cp nodes:/cluster/nodes/kubeconfig .'

compose-down: ## end what compose-up started, volumes included
	@deploy/compose/need.sh compose-down docker compose
	@$(COMPOSE) --profile '*' down --volumes --remove-orphans

compose-local: testbed ## the same without engine, registry or Grafana, on Debian as root; ends by itself (ARGS="--help")
	@$(BIN)/python -m libs.testbed.containers $(ARGS)

kind-up: ## a kind cluster with the chart installed, its machines simulated (needs an engine, kind, kubectl, helm)
	@deploy/compose/need.sh kind-up docker kind kubectl helm
	@$(KIND_FOLDER)/up.sh

kind-down: ## delete that cluster
	@deploy/compose/need.sh kind-down docker kind
	@kind delete cluster --name talos-ccm
