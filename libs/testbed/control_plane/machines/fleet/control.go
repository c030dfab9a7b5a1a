package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Command is one line of stdin. The answer has the same id.
type Command struct {
	ID       int             `json:"id"`
	Do       string          `json:"do"`
	Machines []Facts         `json:"machines"`
	Names    []string        `json:"names"`
	Endpoint int             `json:"endpoint"`
	Faults   json.RawMessage `json:"faults"`
}

// Answer is one line of stdout.
type Answer struct {
	ID    int       `json:"id"`
	Error string    `json:"error,omitempty"`
	Calls []Counted `json:"calls,omitempty"`
}

// Machines is a fleet, or one that does more when machines change.
type Machines interface {
	Put(ctx context.Context, facts ...Facts) error
	Delete(id string) error
	SetFaults(ctx context.Context, id string, faults Faults) error
	MuteWatches(id string) error
	Calls() []Counted
	ResetCalls()
}

// Control executes commands in order. Further has those that only one program knows, for each of the named machines.
type Control struct {
	Machines  Machines
	Endpoints Endpoints
	Further   map[string]func(ctx context.Context, machine string) error
}

// Serve reports that the program is ready, with an answer to no command, and then answers commands. It returns
// without an error when stdin closes.
func (c *Control) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	encoder := json.NewEncoder(out)
	if err := encoder.Encode(Answer{}); err != nil {
		return err
	}
	for {
		var command Command
		if err := decoder.Decode(&command); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("unreadable command: %w", err)
		}
		answer := Answer{ID: command.ID}
		if err := c.carryOut(ctx, command, &answer); err != nil {
			answer.Error = err.Error()
		}
		if err := encoder.Encode(answer); err != nil {
			return err
		}
	}
}

func (c *Control) carryOut(ctx context.Context, command Command, answer *Answer) error {
	switch command.Do {
	case "put":
		return c.Machines.Put(ctx, command.Machines...)
	case "delete":
		return each(command.Names, c.Machines.Delete)
	case "fault":
		var faults Faults
		if err := json.Unmarshal(command.Faults, &faults); err != nil {
			return err
		}
		return each(command.Names, func(name string) error { return c.Machines.SetFaults(ctx, name, faults) })
	case "mute":
		return each(command.Names, c.Machines.MuteWatches)
	case "cut":
		return c.Endpoints.Cut(command.Endpoint)
	case "restore":
		return c.Endpoints.Restore(command.Endpoint)
	case "calls":
		answer.Calls = c.Machines.Calls()
		return nil
	case "reset_calls":
		c.Machines.ResetCalls()
		return nil
	}
	further, known := c.Further[command.Do]
	if !known {
		return fmt.Errorf("there is no command %q", command.Do)
	}
	return each(command.Names, func(name string) error { return further(ctx, name) })
}

func each(names []string, do func(string) error) error {
	for _, name := range names {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}
