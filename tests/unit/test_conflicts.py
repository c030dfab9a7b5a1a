"""Flags that cannot be combined where several services run in one process, and can where one runs alone."""

import pytest

from libs.common.process.run import chosen_runs
from libs.common.settings.of_process import ProcessSettings
from libs.common.settings.reading import SettingsError, read_settings
from services.conflicts import conflicts
from services.csr.service import CSR_RUN
from services.csr.settings import CsrSettings
from services.metadata.service import METADATA_RUN
from services.metadata.settings import MetadataSettings

RANGE = "--service-cluster-ip-range=10.96.0.0/12,fd00:96::/108"


def found(*arguments: str) -> tuple[str, ...]:
    reading = read_settings([MetadataSettings, CsrSettings, ProcessSettings], arguments, {})
    return conflicts(chosen_runs((METADATA_RUN, CSR_RUN), reading), reading)


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
    assert read_settings([CsrSettings], [], {}).of(CsrSettings).service_cluster_ip_range == ()
    taken = read_settings([CsrSettings], [RANGE], {}).of(CsrSettings).service_cluster_ip_range
    assert taken == ("10.96.0.0/12", "fd00:96::/108")
    # host bits are cleared, as ipam does with the same flag
    read_settings([CsrSettings], ["--service-cluster-ip-range=10.96.0.1/12"], {})
    with pytest.raises(SettingsError, match='--service-cluster-ip-range: "home" is not a network'):
        read_settings([CsrSettings], ["--service-cluster-ip-range=home"], {})
