package simulation

import (
	"fmt"
	"strings"
)

// Step is one thing that a world does. No part of it holds a space.
type Step struct {
	// Verb is what is done, such as "release".
	Verb string
	// Subject is to what; empty when the verb needs none.
	Subject string
	// Detail is how; empty when there is one way only.
	Detail string
}

// String returns the step as [ParseStep] reads it.
func (s Step) String() string {
	return strings.TrimRight(s.Verb+" "+s.Subject+" "+s.Detail, " ")
}

// ParseStep reads what String wrote.
func ParseStep(text string) (Step, error) {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > 3 {
		return Step{}, fmt.Errorf("step %q has %d words: write a verb, a subject, a detail", text, len(words))
	}
	words = append(words, "", "")
	return Step{Verb: words[0], Subject: words[1], Detail: words[2]}, nil
}

// ParseSteps reads one step from each line. Empty lines and those that begin with # are left out.
func ParseSteps(text string) ([]Step, error) {
	var steps []Step
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		step, err := ParseStep(line)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// Choice is a step that a world could do now.
type Choice struct {
	// Step is the step.
	Step Step
	// Weight is how likely it is among the others; one of zero is never taken at random.
	Weight int
}

// World is what is driven.
type World interface {
	// Choices returns what could be done now, in an order that depends on nothing but what was done before. The slice is
	// valid until the next call.
	Choices() []Choice
	// Do does one step and returns when everything is quiet again. It reports false, and has done nothing, when the step
	// is not possible now.
	Do(step Step) bool
	// Check returns the first rule that does not hold now, or nil.
	Check() error
}

// Drive lets world do what source chooses, until the source has no more, or a rule is broken. It returns what was done.
func Drive(world World, source Source) ([]Step, error) {
	var done []Step
	for {
		step, ok := source.Next(world.Choices())
		if !ok {
			return done, nil
		}
		if !world.Do(step) {
			continue
		}
		done = append(done, step)
		if err := world.Check(); err != nil {
			return done, err
		}
	}
}
