package main

import (
	"context"
	"errors"

	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubeaccess"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubespan"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"github.com/siderolabs/talos/pkg/machinery/resources/siderolink"
	"github.com/siderolabs/talos/pkg/machinery/resources/time"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// Of Talos's code, three pieces are not exported. Here they are for the calls and types that a cloud controller or an
// attacker of it may try: roles by method, the resources that apid reads, and the registered namespaces and types.

var readers = role.MakeSet(role.Admin, role.Operator, role.Reader)

var roles = map[string]role.Set{
	"/cosi.resource.State/Get":               readers,
	"/cosi.resource.State/List":              readers,
	"/cosi.resource.State/Watch":             readers,
	"/machine.MachineService/Events":         readers,
	"/machine.MachineService/Hostname":       readers,
	"/machine.MachineService/Reboot":         role.MakeSet(role.Admin, role.Operator),
	"/machine.MachineService/ServiceList":    readers,
	"/machine.MachineService/Shutdown":       role.MakeSet(role.Admin, role.Operator),
	"/machine.MachineService/SystemStat":     readers,
	"/machine.MachineService/Version":        readers,
	"/machine.MachineService/EtcdMemberList": role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup),
	"/time.TimeService/Time":                 readers,
}

// readableByAPID rejects everything that apid has no need for.
func readableByAPID(_ context.Context, asked state.Access) error {
	if !asked.Verb.Readonly() {
		return errors.New("apid may not write")
	}
	switch asked.ResourceType {
	case runtime.APIServiceConfigType, secrets.APIType, network.NodeAddressType, network.HostnameStatusType:
		return nil
	}
	return errors.New("apid may not read " + asked.ResourceType)
}

var namespaces = []string{
	cluster.NamespaceName, cluster.RawNamespaceName, config.NamespaceName, etcd.NamespaceName, hardware.NamespaceName,
	k8s.NamespaceName, k8s.ControlPlaneNamespaceName, kubespan.NamespaceName, network.NamespaceName,
	network.ConfigNamespaceName, secrets.NamespaceName, v1alpha1.NamespaceName,
}

var types = []meta.ResourceWithRD{
	&cluster.Affiliate{}, &cluster.Config{}, &cluster.Identity{}, &cluster.Info{}, &cluster.Member{},
	&config.MachineConfig{}, &config.MachineType{},
	&etcd.Config{}, &etcd.Member{}, &etcd.PKIStatus{}, &etcd.Spec{},
	&hardware.MemoryModule{}, &hardware.PCIDevice{}, &hardware.Processor{}, &hardware.SystemInformation{},
	&k8s.APIServerConfig{}, &k8s.BootstrapManifestsConfig{}, &k8s.ControllerManagerConfig{}, &k8s.Endpoint{},
	&k8s.ExtraManifestsConfig{}, &k8s.KubeletConfig{}, &k8s.KubeletKubeconfig{}, &k8s.KubeletSpec{},
	&k8s.KubePrismConfig{}, &k8s.KubePrismEndpoints{}, &k8s.Manifest{}, &k8s.NodeAnnotationSpec{},
	&k8s.NodeCordonedSpec{}, &k8s.NodeIP{}, &k8s.NodeIPConfig{}, &k8s.NodeLabelSpec{}, &k8s.Nodename{},
	&k8s.NodeStatus{}, &k8s.NodeTaintSpec{}, &k8s.SchedulerConfig{}, &k8s.SecretsStatus{}, &k8s.StaticPod{},
	&k8s.StaticPodStatus{},
	&kubeaccess.Config{}, &kubespan.Config{}, &kubespan.Identity{}, &kubespan.PeerSpec{}, &kubespan.PeerStatus{},
	&network.AddressSpec{}, &network.AddressStatus{}, &network.DeviceConfigSpec{}, &network.HardwareAddr{},
	&network.HostnameSpec{}, &network.HostnameStatus{}, &network.LinkSpec{}, &network.LinkStatus{},
	&network.NodeAddress{}, &network.NodeAddressFilter{}, &network.OperatorSpec{}, &network.PlatformConfig{},
	&network.ResolverStatus{}, &network.RouteSpec{}, &network.RouteStatus{}, &network.Status{},
	&runtime.APIServiceConfig{}, &runtime.ExtensionStatus{}, &runtime.KernelCmdline{}, &runtime.KernelParamStatus{},
	&runtime.MachineStatus{}, &runtime.MetaKey{}, &runtime.PlatformMetadata{}, &runtime.SecurityState{},
	&runtime.ServicePID{}, &runtime.UniqueMachineToken{}, &runtime.Version{},
	&secrets.API{}, &secrets.CertSAN{}, &secrets.Etcd{}, &secrets.EtcdRoot{}, &secrets.Kubelet{},
	&secrets.Kubernetes{}, &secrets.KubernetesDynamicCerts{}, &secrets.KubernetesRoot{}, &secrets.OSRoot{},
	&secrets.Trustd{},
	&siderolink.Config{}, &siderolink.Status{}, &time.Status{}, &v1alpha1.Service{},
}

// register makes the namespaces and types known to the state, with Talos's own sensitivity.
func register(ctx context.Context, resources state.State) error {
	names, kinds := registry.NewNamespaceRegistry(resources), registry.NewResourceRegistry(resources)
	if err := errors.Join(names.RegisterDefault(ctx), kinds.RegisterDefault(ctx)); err != nil {
		return err
	}
	for _, namespace := range namespaces {
		if err := names.Register(ctx, namespace, ""); err != nil {
			return err
		}
	}
	for _, kind := range types {
		if err := kinds.Register(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}
