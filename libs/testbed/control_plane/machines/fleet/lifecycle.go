package fleet

import (
	"fmt"
	"net/netip"

	talosmachine "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Member is a machine of the cluster, as the discovery service reports it.
type Member struct {
	Name            string   `json:"name"`
	NodeID          string   `json:"node_id"`
	Hostname        string   `json:"hostname"`
	Addresses       []string `json:"addresses"`
	ControlPlane    bool     `json:"control_plane"`
	OperatingSystem string   `json:"operating_system"`
}

// lifecycle returns the MachineStatus and the discovered Members.
func (f *Facts) lifecycle() ([]owned, error) {
	var resources []owned
	if f.Stage != "" {
		stage, err := runtime.MachineStageString(f.Stage)
		if err != nil {
			return nil, err
		}
		status := runtime.NewMachineStatus()
		status.TypedSpec().Stage = stage
		status.TypedSpec().Status.Ready = stage == runtime.MachineStageRunning
		resources = append(resources, owned{status, "runtime.MachineStatusController"})
	}
	for _, m := range f.Members {
		member, err := m.member()
		if err != nil {
			return nil, err
		}
		resources = append(resources, member)
	}
	return resources, nil
}

func (m *Member) member() (owned, error) {
	if m.Name == "" {
		return owned{}, fmt.Errorf("a member needs a name")
	}
	member := cluster.NewMember(cluster.NamespaceName, m.Name)
	spec := member.TypedSpec()
	spec.NodeID, spec.Hostname, spec.OperatingSystem = m.NodeID, m.Hostname, m.OperatingSystem
	spec.MachineType = talosmachine.TypeWorker
	if m.ControlPlane {
		spec.MachineType = talosmachine.TypeControlPlane
	}
	for _, text := range m.Addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return owned{}, err
		}
		spec.Addresses = append(spec.Addresses, address)
	}
	return owned{member, "cluster.MemberController"}, nil
}
