package fleet

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Extension is one ExtensionStatus.
type Extension struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Processor is one SMBIOS socket, populated or not.
type Processor struct {
	Socket       string `json:"socket"`
	Manufacturer string `json:"manufacturer"`
	ProductName  string `json:"product_name"`
	BootSpeed    uint32 `json:"boot_speed"`
	CoreCount    uint32 `json:"core_count"`
	CoreEnabled  uint32 `json:"core_enabled"`
	ThreadCount  uint32 `json:"thread_count"`
}

// MemoryModule is one SMBIOS memory slot, populated or not.
type MemoryModule struct {
	Locator      string `json:"locator"`
	Size         uint32 `json:"size"`
	Manufacturer string `json:"manufacturer"`
}

// inventory returns the resources that only a reboot can change.
func (f *Facts) inventory() []owned {
	var resources []owned
	for number, e := range f.Extensions {
		status := runtime.NewExtensionStatus(runtime.NamespaceName, strconv.Itoa(number))
		*status.TypedSpec() = runtime.ExtensionStatusSpec{
			Image: fmt.Sprintf("%03d.sqsh", number), Metadata: extensions.Metadata{Name: e.Name, Version: e.Version},
		}
		resources = append(resources, owned{status, "runtime.ExtensionStatusController"})
	}
	for _, p := range f.Processors {
		processor := hardware.NewProcessorInfo(strings.ReplaceAll(p.Socket, " ", "-"))
		*processor.TypedSpec() = hardware.ProcessorSpec{
			Socket: p.Socket, Manufacturer: p.Manufacturer, ProductName: p.ProductName, BootSpeed: p.BootSpeed,
			CoreCount: p.CoreCount, CoreEnabled: p.CoreEnabled, ThreadCount: p.ThreadCount,
		}
		resources = append(resources, owned{processor, "hardware.SystemInfoController"})
	}
	for _, m := range f.MemoryModules {
		module := hardware.NewMemoryModuleInfo(strings.ReplaceAll(m.Locator, " ", "-"))
		*module.TypedSpec() = hardware.MemoryModuleSpec{Size: m.Size, DeviceLocator: m.Locator, Manufacturer: m.Manufacturer}
		resources = append(resources, owned{module, "hardware.SystemInfoController"})
	}
	return resources
}
