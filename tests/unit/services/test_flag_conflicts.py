"""Flags that cannot be combined where several services run in one process, and can where one runs alone."""

import pytest

from libs.common.service.run_process import select_definitions
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError, read_settings
from services.csr.service import CSR_DEFINITION
from services.csr.settings import CsrSettings
from services.flag_conflicts import find_conflicts
from services.metadata.service import METADATA_DEFINITION
from services.metadata.settings import MetadataSettings

RANGE = "--service-cluster-ip-range=10.96.0.0/12,fd00:96::/108"


def found(*arguments: str) -> tuple[str, ...]:
    reading = read_settings([MetadataSettings, CsrSettings, ProcessSettings], arguments, {})
    return find_conflicts(select_definitions((METADATA_DEFINITION, CSR_DEFINITION), reading), reading)


def test_without_talos_csr_in_the_same_process_needs_the_service_networks():
    (sentence,) = found("--without-talos")
    assert sentence.startswith("--without-talos needs --service-cluster-ip-range")


@pytest.mark.parametrize(
    "arguments",
    [(), (RANGE,), ("--without-talos", RANGE), ("--without-talos", "--controllers=cloud-node")],
    ids=["with-talos", "with-both", "with-the-range", "without-csr"],
)
def test_these_go_together(arguments: tuple[str, ...]):
    assert found(*arguments) == ()


def test_a_csr_alone_starts_without_the_range_and_takes_it():
    assert read_settings([CsrSettings], [], {}).get(CsrSettings).service_cluster_ip_range == ()
    taken = read_settings([CsrSettings], [RANGE], {}).get(CsrSettings).service_cluster_ip_range
    assert taken == ("10.96.0.0/12", "fd00:96::/108")
    # host bits are cleared, as ipam does with the same flag
    read_settings([CsrSettings], ["--service-cluster-ip-range=10.96.0.1/12"], {})
    with pytest.raises(SettingsError, match='--service-cluster-ip-range: "home" is not a network'):
        read_settings([CsrSettings], ["--service-cluster-ip-range=home"], {})
