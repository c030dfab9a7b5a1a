"""Ports of the testbed are reserved until they are released."""

from pathlib import Path

from libs.testbed.ports import allocate_port, release_ports


def list_reservations() -> set[str]:
    """The reservations that the kernel knows, of all processes."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {line.rpartition("-")[2] for line in lines if "@talos-ccm-port-" in line}


def test_the_ports_of_a_block_are_released_at_its_end_and_no_others():
    kept = allocate_port()
    with release_ports():
        ports = [allocate_port() for _ in range(3)]
        assert {str(port) for port in (kept, *ports)} <= list_reservations()
    left = list_reservations()
    assert str(kept) in left
    assert not left & {str(port) for port in ports}
