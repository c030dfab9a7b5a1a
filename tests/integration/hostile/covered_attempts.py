"""Attempts that tests in other files carry out; each row of docs/threat-model.md names its test."""

from typing import Final

import msgspec

from tests.integration.test_health_flood import SAYS
from tests.integration.test_talos_hostile import MISBEHAVIOURS

_INTEGRATION: Final = "tests/integration"
_RIGHTS: Final = f"{_INTEGRATION}/test_nats_rights.py::"
_TALOS: Final = f"{_INTEGRATION}/test_talos_hostile.py::"
_HOLDERS: Final = "tests/flow/test_address_holders.py::"
_BALANCERS: Final = "tests/flow/clouds/test_balancer_flow.py::"
_ROUTES: Final = "tests/flow/clouds/test_route_flow.py::"
_NEUTRON: Final = "tests/real/openstack/test_neutron_routes.py::"
_ROUTE_PLAN: Final = "tests/unit/services/cloud/routes/test_plan_routes.py::"
_CLOUD: Final = "tests/flow/clouds/test_cloud_flow.py::"
_INSTANCES: Final = "tests/flow/test_lifecycle_instances.py::"
_LIFECYCLE: Final = "tests/unit/services/lifecycle"
_METADATA: Final = "tests/unit/services/labeler/test_instance_metadata.py::"
_ACCOUNTS: Final = "tests/deploy/test_chart_clouds.py::"
_CONSOLE: Final = "tests/flow/console/test_console_exposed.py::"
_LOGIN: Final = "tests/contract/test_console_login.py::"
_FLOOD: Final = f"{_INTEGRATION}/test_health_flood.py::"
_NOT_ALLOWED: Final = (
    f"{_RIGHTS}test_whatever_is_not_a_users_to_say_or_to_hear_is_refused",
    "the server refuses each",
)


class CoveredAttempt(msgspec.Struct, frozen=True):
    """An attempt, its outcome, and its test as path::function."""

    name: str
    outcome: str
    test: str


def _not_allowed(name: str) -> CoveredAttempt:
    return CoveredAttempt(f"any key: {name}", "the server refuses it", _NOT_ALLOWED[0])


COVERED_MACHINE_ATTEMPTS: Final = (
    CoveredAttempt(
        "two hundred requests for certificates, of every kind that tests know",
        "csr approves only those of honest kubelets",
        f"{_INTEGRATION}/test_csr_hostile.py::test_of_all_requests_only_the_good_ones_are_signed_and_each_costs_one_request",
    ),
    *(
        CoveredAttempt(
            f"answers a query over Talos with {name}",
            "the query fails with a reason; other queries over the same connection succeed",
            f"{_TALOS}test_a_hostile_machine_gets_a_fault_and_others_on_the_same_connection_notice_nothing",
        )
        for name, _, _ in MISBEHAVIOURS
    ),
    CoveredAttempt(
        "sends watch events without a pause",
        "metadata reads twenty a second",
        f"{_TALOS}test_a_machine_that_floods_its_watch_is_held_back",
    ),
    CoveredAttempt(
        "declares keys of rules as keys of its machine config",
        "the labeler writes keys that no kubelet may write",
        f"{_INTEGRATION}/test_labeler_rules.py::test_a_kubelet_cannot_keep_what_no_kubelet_may_write_by_an_annotation_of_its_own_node",
    ),
    CoveredAttempt(
        "answers at the address of a machine that is off",
        "lifecycle keeps the Node while discovery lists its machine",
        "tests/unit/services/metadata/machines/test_machine_replacement.py"
        "::test_discovery_must_list_the_replacement_and_not_the_replaced_machine",
    ),
    CoveredAttempt(
        "registers with a pod CIDR as wide as a pool",
        "**Nodes that join get no pod CIDR**; an Event on each names this Node",
        "tests/flow/test_ipam_flow.py::test_a_node_that_carries_a_whole_pool_is_named_on_those_for_whom_nothing_is_left",
    ),
    CoveredAttempt(
        "registers with a pod CIDR outside of the pod networks, such as `0.0.0.0/0`",
        "no route leads to it; a condition and an Event of its Node name the pod networks",
        f"{_ROUTES}test_no_route_leaves_the_pod_networks_that_a_control_plane_reports",
    ),
    CoveredAttempt(
        "registers with the pod CIDR of another node, or with a part of it",
        "the route of the other node stays, and its own Node gets none",
        f"{_ROUTE_PLAN}test_no_route_leads_to_the_addresses_of_another",
    ),
    CoveredAttempt(
        "registers with a pod CIDR as wide as the pod networks, before other nodes",
        "**nodes that join get no route**; the condition of each names the route",
        f"{_ROUTE_PLAN}test_a_node_that_claims_all_pod_networks_is_named_on_those_that_get_no_route",
    ),
    CoveredAttempt(
        "registers as a dedicated server at Hetzner, with the address of one outside of the cluster",
        "**load balancers send traffic there**, with `ROBOT_ENABLED`, and if it is of the same customer",
        f"{_BALANCERS}test_a_dedicated_server_is_a_target_by_its_address_where_switched_on",
    ),
    CoveredAttempt(
        "registers a bare Node under the full name of another machine, with the join token",
        "**requests of that machine wait**, and name the bare Node; none is denied",
        "tests/flow/test_csr_flow.py::test_a_node_object_with_a_machines_full_name_makes_its_request_wait_and_denies_it_nothing",
    ),
    CoveredAttempt(
        "lists the public addresses of fifty other nodes, whatever the name of the link",
        "their nodes get certificates and renewals; its own request waits and names them",
        f"{_HOLDERS}test_a_machine_that_lists_the_addresses_of_others_blocks_only_its_own_requests",
    ),
    CoveredAttempt(
        "writes another node's public address to its own status, and its machine never answers",
        "the other node gets its certificate",
        f"{_HOLDERS}test_a_silent_kubelet_that_writes_the_addresses_of_others_blocks_nobody",
    ),
    CoveredAttempt(
        "requests an address of another node's pods, which its own Talos attests",
        "the request stays pending",
        f"{_HOLDERS}test_an_address_of_other_nodes_pods_is_only_a_node_ip_that_answers",
    ),
    CoveredAttempt(
        "registers with a pod CIDR that contains the addresses of other nodes",
        "**requests for these addresses wait** and name its Node; node IPs that answer pass",
        f"{_HOLDERS}test_an_address_of_other_nodes_pods_is_only_a_node_ip_that_answers",
    ),
    CoveredAttempt(
        "lists an address before the node that it belongs to joins",
        "**requests of that node for this address wait** and name the holder",
        f"{_HOLDERS}test_who_lists_the_address_of_a_future_node_holds_it_until_it_lets_go",
    ),
    CoveredAttempt(
        "reports an address in every block of a pool",
        "its addresses reserve at most 16 blocks, and one if no other block is free",
        "tests/flow/test_ipam_flow.py::test_a_machine_that_reports_an_address_in_every_block_leaves_blocks_for_others",
    ),
    CoveredAttempt(
        "writes escape sequences where `talos-ccm explain` shows them",
        "the terminal shows them as text",
        "tests/unit/cli/explain/node/test_node.py"
        "::test_whatever_people_and_machines_write_is_told_and_steers_nothing",
    ),
)
COVERED_SERVICE_ATTEMPTS: Final = (
    _not_allowed("publishes on subjects of another service"),
    _not_allowed(
        "creates, changes, purges or deletes the stream (except the watcher), or reads it by request"
    ),
    _not_allowed("consumes, changes or acknowledges for another service's durable consumer"),
    _not_allowed("receives another user's replies, or any message by a plain subscription"),
    _not_allowed("sends requests to the system account `$SYS`"),
    CoveredAttempt(
        "any service: has the server write its message under another subject, by a reply subject",
        "readers ignore a message under a wrong subject",
        f"{_RIGHTS}test_what_the_server_reads_out_to_another_subject_is_no_message_of_that_subject",
    ),
    CoveredAttempt(
        "any key: has the server send itself a request to delete the stream",
        "the request leads nowhere",
        f"{_RIGHTS}test_what_nobody_may_ask_the_server_does_not_ask_itself_by_an_answer_to_that_subject",
    ),
    CoveredAttempt(
        "any key: has the server delete a durable consumer in the same way",
        "**the consumer is deleted**; the watcher creates it again within 15 s",
        f"{_RIGHTS}test_what_somebody_has_the_server_delete_by_its_answer_is_made_anew_and_nobody_is_acknowledged_so",
    ),
    CoveredAttempt(
        "any service: requests a consumer of more than its subject permits",
        "the server refuses it",
        f"{_RIGHTS}test_a_consumer_hears_no_more_than_the_subject_by_which_it_was_asked_for",
    ),
    CoveredAttempt(
        "`metadata`: attests what a pending request lacks in Kubernetes",
        "csr's write fails: it tests the request that Kubernetes has",
        f"{_INTEGRATION}/test_csr_forged.py::test_forged_words_get_nothing_approved_that_kubernetes_does_not_hold",
    ),
    CoveredAttempt(
        "`watcher` and `metadata`: garbage on every subject of the flow",
        "no service ends, and honest nodes get certificates",
        f"{_INTEGRATION}/test_csr_forged.py::test_garbage_on_every_subject_ends_no_process_and_keeps_no_node_from_its_certificate",
    ),
    CoveredAttempt(
        "`cloud-<account>`: publishes reports of another account", "the server refuses it", _NOT_ALLOWED[0]
    ),
    CoveredAttempt(
        "`cloud-<account>`: has the server write its report under the subject of another account",
        "lifecycle drops it",
        f"{_INSTANCES}test_a_report_under_the_subject_of_another_account_is_dropped",
    ),
    CoveredAttempt(
        "`cloud-<account>`: reports a server as gone whose machine answers",
        "lifecycle keeps the Node",
        f"{_LIFECYCLE}/test_instance_evidence.py::test_each_clause_alone_keeps_the_node",
    ),
    CoveredAttempt(
        "`cloud-<account>`: reports the servers of its Nodes as gone while their machines are silent",
        "**lifecycle deletes these Nodes** after three rounds, within the account's limit",
        f"{_INSTANCES}test_a_node_whose_instance_is_gone_beside_an_anchor_is_deleted_after_three_rounds",
    ),
    CoveredAttempt(
        "`cloud-<account>`: reports these servers as shut down",
        "**lifecycle sets the shutdown taint** until the machine answers",
        f"{_LIFECYCLE}/test_shutdown_taint.py::test_a_silent_machine_that_its_account_reports_as_off_is_shut_down",
    ),
    CoveredAttempt(
        "`cloud-<account>`: claims the server of another account",
        "the record stays the other account's",
        f"{_LIFECYCLE}/test_instance_record.py::test_no_account_takes_the_record_of_another_that_does_not_say_gone",
    ),
    CoveredAttempt(
        "`cloud-<account>`: claims a server of another account that was deleted",
        "**the Node stays** while it claims the server; the decision names this account",
        f"{_INSTANCES}test_an_account_that_shows_it_alive_ends_all_evidence",
    ),
    CoveredAttempt(
        "`cloud-<account>`: supplies false metadata of a server",
        "**its Node gets a false zone and type**; the providerID is the one that its machine names",
        f"{_METADATA}test_a_false_answer_of_an_account_changes_no_provider_id",
    ),
    CoveredAttempt(
        "`cloud-<account>` and a machine: the account confirms that the machine is another server",
        "**the Node gets the providerID of that server**, unless the server has a Node",
        f"{_METADATA}test_an_account_that_confirms_a_lie_gives_away_only_a_server_without_a_node",
    ),
    CoveredAttempt(
        "`watcher`: reports a Service as deleted, or one that does not exist",
        "no load balancer comes or goes: the account's process reads the Service from the API server",
        f"{_BALANCERS}test_messages_about_services_prove_nothing_and_those_about_nodes_move_targets_only",
    ),
    CoveredAttempt(
        "`watcher`: reports Nodes as deleted",
        "**load balancers lose these targets** until the watcher publishes the Nodes again",
        f"{_BALANCERS}test_messages_about_services_prove_nothing_and_those_about_nodes_move_targets_only",
    ),
    CoveredAttempt(
        "`watcher`: reports a Node with a route as deleted",
        "the route stays while its server exists",
        f"{_ROUTES}test_forged_messages_about_nodes_move_routes_and_delete_none_of_a_server",
    ),
    CoveredAttempt(
        "`watcher`: reports it as deleted, and its pod CIDR as that of another Node",
        "**the route leads to the other Node** until the watcher publishes the Nodes again",
        f"{_ROUTES}test_forged_messages_about_nodes_move_routes_and_delete_none_of_a_server",
    ),
)
# What somebody does at the cloud, or with the Secret of an account.
COVERED_CREDENTIAL_ATTEMPTS: Final = (
    CoveredAttempt(
        "mounts the Secret in a pod of another service",
        "the chart mounts it only in the pod of its account",
        f"{_ACCOUNTS}test_no_other_pod_reads_a_credential_of_a_cloud",
    ),
    CoveredAttempt(
        "uses the pod that has the credential against Kubernetes",
        "the pod has no token of a ServiceAccount; **with load balancers, it may patch every Service**",
        f"{_ACCOUNTS}test_an_account_has_one_pod_with_its_credential_alone",
    ),
    CoveredAttempt(
        "reads the credential in a report, log or error, which the API repeats",
        "no reason contains it",
        "tests/contract/clouds/test_faults.py::test_a_fault_answers_no_question",
    ),
    CoveredAttempt(
        "replaces the credential by one of another project",
        "all servers of the account are unknown, so no Node goes",
        f"{_CLOUD}test_the_token_of_another_project_proves_nothing",
    ),
    CoveredAttempt(
        "replaces it while a Node with a route goes",
        "no route is deleted: the project has no such network",
        f"{_ROUTES}test_by_the_token_of_another_project_nothing_is_deleted",
    ),
    CoveredAttempt(
        "adds a route to the pod CIDR of a Node that joins",
        "**the Node gets no route** of this controller, and its condition names the other one",
        f"{_ROUTES}test_a_route_of_another_owner_stays_and_the_node_names_it",
    ),
    CoveredAttempt(
        "names a Node's server in the port of another project at OpenStack, in a shared network",
        "the port is no gateway",
        f"{_NEUTRON}test_the_gateway_is_the_address_of_a_port_of_this_project_behind_the_router",
    ),
    CoveredAttempt(
        "replaces it while a query is under way",
        "the answer supplies nothing",
        f"{_CLOUD}test_a_token_that_changed_during_the_query_supplies_nothing",
    ),
    CoveredAttempt(
        "uses up the rate limit of the project",
        "cloud pauses while less than a quarter remains",
        "tests/contract/clouds/test_hcloud_faults.py::test_a_quarter_of_the_rate_limit_is_left_to_the_other_clients",
    ),
    CoveredAttempt(
        "deletes all servers of the project, with a credential that may write",
        "**lifecycle deletes their Nodes**, as it should, within the account's limit",
        "tests/flow/clouds/test_cloud_deletion.py::test_a_pool_that_its_cloud_deletes_to_zero_takes_its_nodes_along",
    ),
    CoveredAttempt(
        "answers in place of the API with a certificate that is not the API's",
        "cloud does not connect",
        "tests/contract/test_client_tls.py::test_a_certificate_is_refused",
    ),
)
COVERED_POD_ATTEMPTS: Final = (
    CoveredAttempt(
        "poses as NATS without TLS",
        "services do not sign its nonce",
        "tests/contract/test_nats_connection.py"
        "::test_no_greeting_makes_us_say_anything_in_plain_text_where_tls_is_required",
    ),
    CoveredAttempt(
        "poses as NATS, Talos or kube-apiserver with a certificate that is expired, or not theirs",
        "no client of this project connects",
        "tests/contract/test_client_tls.py::test_a_certificate_is_refused",
    ),
    CoveredAttempt(
        "poses as a Talos endpoint of another authority",
        "metadata sends no query, and reports the certificate",
        f"{_INTEGRATION}/test_talos_credentials.py::test_a_replaced_ca_is_a_certificate_fault_until_the_file_has_it_and_then_none",
    ),
    *(
        CoveredAttempt(
            f"eighty callers of the health port, each of which {kind}",
            "every liveness probe succeeds",
            f"{_FLOOD}test_probes_succeed_during_a_flood_that_does_not_end",
        )
        for kind in SAYS
    ),
    CoveredAttempt(
        "300 connections to the health port",
        "the process keeps at most 64, and every liveness probe succeeds",
        f"{_FLOOD}test_a_flood_takes_no_more_file_descriptors_than_the_limit",
    ),
    CoveredAttempt(
        "asks the health port of a service why it is not ready",
        "it gets the names of the failed checks, and no name of a Node",
        f"{_INTEGRATION}/test_health_addresses.py::test_reasons_name_nodes_only_for_callers_on_the_loopback_address",
    ),
    CoveredAttempt(
        "uses the Kubernetes permissions of one of our accounts beyond its work",
        "kube-apiserver refuses each request",
        "tests/deploy/test_permissions.py::test_an_account_has_exactly_the_permissions_of_its_service_spec",
    ),
)

COVERED_CONSOLE_ATTEMPTS: Final = (
    CoveredAttempt(
        "reads data without a session, or with a guessed one",
        "401; only the login page is served",
        f"{_CONSOLE}test_data_needs_a_session",
    ),
    CoveredAttempt(
        "logs in with the token of a user who may not list all kinds that the console shows",
        "403",
        f"{_LOGIN}test_a_user_without_a_right_is_refused_and_reads_which",
    ),
    CoveredAttempt(
        "keeps a page open after its token was revoked",
        "the session ends, and the page gets nothing more",
        f"{_LOGIN}test_a_deleted_token_ends_the_session_and_its_stream",
    ),
    CoveredAttempt(
        "keeps a page open after its right was withdrawn",
        "the session ends, and the page gets nothing more",
        f"{_LOGIN}test_a_withdrawn_right_ends_the_session_and_its_stream",
    ),
    CoveredAttempt(
        "keeps the console from the API server, so that it cannot check a session",
        "after two minutes the session shows nothing",
        f"{_CONSOLE}test_a_session_outlives_a_restart_of_the_api_server_and_shows_nothing_in_a_long_outage",
    ),
    CoveredAttempt(
        "resolves a name of its own to the console (DNS rebinding)",
        "403, also with the cookie of a session",
        f"{_CONSOLE}test_a_foreign_host_is_refused_with_a_session_too",
    ),
    CoveredAttempt(
        "lets its site log the user in or out (CSRF)",
        "403, and no cookie",
        f"{_CONSOLE}test_other_sites_can_neither_log_in_nor_out",
    ),
    CoveredAttempt(
        "reads the cookie by script, over plain HTTP or in a request of its site",
        "browsers withhold it: HttpOnly, Secure, SameSite=Strict",
        f"{_CONSOLE}test_the_cookie_is_out_of_reach_for_scripts_other_sites_and_plain_http",
    ),
    CoveredAttempt(
        "gives the browser a session id of its choice before the login (session fixation)",
        "each login has a new id",
        f"{_CONSOLE}test_each_login_has_a_new_session_and_ends_the_former_one",
    ),
    CoveredAttempt(
        "tries many tokens",
        "the console asks the API server ten times, and then once every two seconds",
        f"{_CONSOLE}test_failed_logins_do_not_load_the_api_server",
    ),
    CoveredAttempt(
        "searches the log of the console for tokens",
        "it has none",
        f"{_CONSOLE}test_the_page_and_the_log_never_contain_a_token",
    ),
    CoveredAttempt(
        "embeds the page in its own (clickjacking)",
        "browsers refuse: frame-ancestors 'none'",
        f"{_CONSOLE}test_every_response_forbids_frames_and_inline_scripts",
    ),
    CoveredAttempt(
        "sends a form that is huge, of another type, or has markup or line ends in the token",
        "an error, no cookie, and no markup in the page",
        f"{_CONSOLE}test_a_hostile_form_is_refused",
    ),
    CoveredAttempt(
        "sends a form that never ends",
        "the console closes the connection after five seconds",
        f"{_CONSOLE}test_a_form_that_never_arrives_ends_the_connection",
    ),
)
