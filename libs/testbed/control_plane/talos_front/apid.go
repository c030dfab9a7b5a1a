package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/siderolabs/talos/internal/app/apid"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

const apidCommand = "apid"

// runAPID runs Talos's apid with the directory as its root, because the paths of its sockets are constants.
func runAPID(directory string) {
	if err := enterRoot(directory); err != nil {
		fmt.Fprintln(os.Stderr, "talos_front: apid needs a root directory of its own:", err)
		os.Exit(1)
	}
	os.Args = os.Args[:1] // apid parses them
	apid.Main()
}

func enterRoot(directory string) error {
	if err := syscall.Chroot(directory); err != nil {
		return &os.PathError{Op: "chroot", Path: directory, Err: err}
	}
	return os.Chdir("/")
}

// process is a running apid.
type process struct {
	command *exec.Cmd
	ended   chan struct{}
}

// startAPID starts an apid with its log in its root directory. The kernel kills it when this process ends.
func startAPID(directory string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(directory, "apid.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the process has a descriptor of its own
	command := exec.Command("/proc/self/exe", apidCommand, directory)
	command.Stdout, command.Stderr = log, log
	command.Env = []string{
		constants.EnvTcellMinimizeEnvironment, constants.EnvGRPCEnforccceALPNEnabled, constants.EnvApidGomemlimit(),
	}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := spawn(command); err != nil {
		return nil, err
	}
	p := &process{command, make(chan struct{})}
	go func() {
		_ = command.Wait() // it ends when it is killed
		close(p.ended)
	}()
	return p, nil
}

// kill ends the process as a crash does, and waits for its end.
func (p *process) kill() {
	_ = p.command.Process.Kill() // fails only on a process that has ended
	<-p.ended
}

func (p *process) pid() int32 { return int32(p.command.Process.Pid) }

var spawned = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread() // a parent death signal follows the thread that started the process
		for start := range spawned {
			start()
		}
	}()
}

func spawn(command *exec.Cmd) error {
	started := make(chan error)
	spawned <- func() { started <- command.Start() }
	return <-started
}
