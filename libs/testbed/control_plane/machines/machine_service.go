package main

import (
	"context"
	goruntime "runtime"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/emptypb"
)

// MachineService implements only Version.
type MachineService struct {
	machine.UnimplementedMachineServiceServer

	router *Router
}

// Version is the cheapest call that proves that a machine is reachable.
func (s *MachineService) Version(ctx context.Context, _ *emptypb.Empty) (*machine.VersionResponse, error) {
	visit, err := s.router.visit(ctx, "/machine.MachineService/Version", Call{Method: "Version"})
	if err != nil {
		return nil, err
	}
	defer visit.leave()
	return &machine.VersionResponse{Messages: []*machine.Version{visit.machine.version()}}, nil
}

func (m *Machine) version() *machine.Version {
	m.mu.Lock()
	defer m.mu.Unlock()
	platform := &machine.PlatformInfo{Mode: "metal"}
	if p := m.facts.Platform; p != nil {
		platform.Name = p.Platform
		platform.Mode = mode(p.Platform)
	}
	return &machine.Version{
		Version: &machine.VersionInfo{
			Tag: m.facts.TalosVersion, GoVersion: goruntime.Version(), Os: "linux", Arch: "amd64",
		},
		Platform: platform,
		Features: &machine.FeaturesInfo{Rbac: true},
	}
}

func mode(platform string) string {
	switch platform {
	case "metal", "container":
		return platform
	default:
		return "cloud"
	}
}
