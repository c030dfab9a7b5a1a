"""What polls must provide."""

import pytest

from libs.common.settings.read_settings import SettingsError, read_settings
from services.metadata.poll_requirements import PollRequirements
from services.metadata.settings import MetadataSettings


@pytest.mark.parametrize(("accounts", "needed"), [((), False), (("hcloud/prod",), True)])
def test_smbios_is_queried_only_where_an_account_supplies_metadata(accounts: tuple[str, ...], needed: bool):
    assert PollRequirements(MetadataSettings(metadata_accounts=accounts)).needs_system is needed


def test_an_account_of_an_unknown_cloud_is_rejected():
    with pytest.raises(SettingsError, match="--cloud-metadata-accounts: 'aws/prod'"):
        read_settings([MetadataSettings], ["--cloud-metadata-accounts=aws/prod"], {})
