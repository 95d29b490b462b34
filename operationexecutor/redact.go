package operationexecutor

import (
	"github.com/volumekit/volumekit/volume"
)

// lentSpecs are the specs that a plugin was given: what it says in an error or a panic must hold none of their secrets.
type lentSpecs struct {
	generator *Generator
	first     *volume.Spec
	others    []*volume.Spec // hardly ever
}

// lentSpecs returns what plugins were given so far. A call that is left behind may still read it when the operation goes on.
func (x *execution) lentSpecs() lentSpecs {
	l := lentSpecs{generator: x.loan.generator, first: x.loan.original}
	for spec := range x.loans {
		l.others = append(l.others, spec)
	}
	return l
}

// redact returns the error of a plugin without secrets.
func (l lentSpecs) redact(plugin string, err error) error {
	if err == nil || l.first == nil {
		return err
	}
	for _, secrets := range l.secrets(plugin) {
		err = secrets.Redact(err)
	}
	return err
}

// redactPanic returns what a plugin panicked with, without secrets.
func (l lentSpecs) redactPanic(plugin string, value any) any {
	if value == nil || l.first == nil {
		return value
	}
	for _, secrets := range l.secrets(plugin) {
		value = secrets.RedactPanic(value)
	}
	return value
}

func (l lentSpecs) secrets(plugin string) []volume.Secrets {
	public := l.generator.plugins.PublicKeys(plugin)
	all := []volume.Secrets{l.first.Secrets(public)}
	for _, spec := range l.others {
		all = append(all, spec.Secrets(public))
	}
	return all
}
