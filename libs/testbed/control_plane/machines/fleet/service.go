package fleet

import (
	"context"
	goruntime "runtime"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Select selects the machine of a call and begins the visit.
type Select func(ctx context.Context, method string, call Call) (*Visit, error)

// Register lets a server answer COSI's calls and Version.
func Register(server *grpc.Server, selectMachine Select) {
	v1alpha1.RegisterStateServer(server, &stateService{visit: selectMachine})
	machine.RegisterMachineServiceServer(server, &machineService{visit: selectMachine})
}

type stateService struct {
	v1alpha1.UnimplementedStateServer

	visit Select
}

// Get returns one resource.
func (s *stateService) Get(ctx context.Context, request *v1alpha1.GetRequest) (*v1alpha1.GetResponse, error) {
	visit, err := s.visit(ctx, "/cosi.resource.State/Get", Call{Method: "Get", Type: request.GetType()})
	if err != nil {
		return nil, err
	}
	return visit.get(request)
}

// List streams the resources of a type.
func (s *stateService) List(request *v1alpha1.ListRequest, stream v1alpha1.State_ListServer) error {
	visit, err := s.visit(stream.Context(), "/cosi.resource.State/List", Call{Method: "List", Type: request.GetType()})
	if err != nil {
		return err
	}
	return visit.list(request, stream)
}

// Watch streams the changes of a type, or of one resource.
func (s *stateService) Watch(request *v1alpha1.WatchRequest, stream v1alpha1.State_WatchServer) error {
	visit, err := s.visit(stream.Context(), "/cosi.resource.State/Watch", Call{Method: "Watch", Type: request.GetType()})
	if err != nil {
		return err
	}
	return visit.watch(request, stream)
}

// Create is forbidden to readers, like all writes.
func (s *stateService) Create(context.Context, *v1alpha1.CreateRequest) (*v1alpha1.CreateResponse, error) {
	return nil, NotAuthorized()
}

// Update is forbidden to readers.
func (s *stateService) Update(context.Context, *v1alpha1.UpdateRequest) (*v1alpha1.UpdateResponse, error) {
	return nil, NotAuthorized()
}

// Destroy is forbidden to readers.
func (s *stateService) Destroy(context.Context, *v1alpha1.DestroyRequest) (*v1alpha1.DestroyResponse, error) {
	return nil, NotAuthorized()
}

// machineService implements only Version.
type machineService struct {
	machine.UnimplementedMachineServiceServer

	visit Select
}

// Version is the cheapest call that proves that a machine is reachable.
func (s *machineService) Version(ctx context.Context, _ *emptypb.Empty) (*machine.VersionResponse, error) {
	visit, err := s.visit(ctx, "/machine.MachineService/Version", Call{Method: "Version"})
	if err != nil {
		return nil, err
	}
	return &machine.VersionResponse{Messages: []*machine.Version{visit.version()}}, nil
}

func (m *Machine) version() *machine.Version {
	facts := m.Facts()
	platform := &machine.PlatformInfo{Mode: "metal"}
	if p := facts.Platform; p != nil {
		platform.Name = p.Platform
		platform.Mode = mode(p.Platform)
	}
	return &machine.Version{
		Version: &machine.VersionInfo{
			Tag: facts.TalosVersion, GoVersion: goruntime.Version(), Os: "linux", Arch: "amd64",
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
