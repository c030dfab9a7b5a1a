package main

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

// Control executes commands in order.
type Control struct {
	fleet     *Fleet
	endpoints *Endpoints
}

// Serve returns without an error when stdin closes.
func (c *Control) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	encoder := json.NewEncoder(out)
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
		for _, facts := range command.Machines {
			if err := c.fleet.Put(ctx, facts); err != nil {
				return err
			}
		}
		return nil
	case "delete":
		return each(command.Names, c.fleet.Delete)
	case "fault":
		var faults Faults
		if err := json.Unmarshal(command.Faults, &faults); err != nil {
			return err
		}
		return c.machines(command.Names, func(m *Machine) error { return m.SetFaults(ctx, faults) })
	case "mute":
		return c.machines(command.Names, func(m *Machine) error { m.MuteWatches(); return nil })
	case "cut":
		return c.endpoints.Cut(command.Endpoint)
	case "restore":
		return c.endpoints.Restore(command.Endpoint)
	case "calls":
		answer.Calls = c.fleet.Calls()
		return nil
	case "reset_calls":
		c.fleet.ResetCalls()
		return nil
	default:
		return fmt.Errorf("there is no command %q", command.Do)
	}
}

func (c *Control) machines(names []string, do func(*Machine) error) error {
	return each(names, func(name string) error {
		m, err := c.fleet.Machine(name)
		if err != nil {
			return err
		}
		return do(m)
	})
}

func each(names []string, do func(string) error) error {
	for _, name := range names {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}
