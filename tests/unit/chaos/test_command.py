"""The command line of `make chaos`."""

from click.testing import CliRunner

from tests.chaos.__main__ import main
from tests.chaos.faults import FAULTS


def test_help_says_what_a_seed_does_not_repeat():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "A seed repeats the workload and the schedule of faults. It does not repeat how the steps" in text
    assert "1: a violation, or a run whose cluster did not start; 130: interrupted." in text


def test_list_names_every_fault_with_its_bound():
    result = CliRunner().invoke(main, ["--list"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == [fault.name for fault in FAULTS]
    assert all("recovers within 60 s" in line for line in lines)


def test_an_unknown_fault_is_a_usage_error():
    result = CliRunner().invoke(main, ["--alone", "--fault", "nats-on-fire"])
    assert result.exit_code == 2
    assert "nats-on-fire" in result.output
