package volumemanager

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// ContainerEnvironment tells the environment of a container, as the program that starts it has put it together: from config
// maps, secrets, resources and services too, which the manager does not read.
type ContainerEnvironment interface {
	// ContainerEnvironment returns the value of every variable of a container, as its processes get it. It is asked by
	// [Manager.ContainerMounts], once in a call and only if the container has a subPathExpr; what it returns is not kept. pod and
	// container must not be changed. It is called in the goroutine of the caller of ContainerMounts, without a lock.
	ContainerEnvironment(ctx context.Context, pod *v1.Pod, container *v1.Container) (map[string]string, error)
}

// VariableError says that a subPathExpr refers to a variable of the container's environment whose value is not known here.
type VariableError struct {
	// Variable is the name of the variable.
	Variable string
	// Err is why its value is not known. It matches volume.ErrUnsupported when it comes from where only an orchestrator can
	// look, volume.ErrTransient when the pod has no such value yet, and else volume.ErrInvalid.
	Err error
}

// Error names the variable.
func (e *VariableError) Error() string {
	return fmt.Sprintf("variable %q of subPathExpr: %v", e.Variable, e.Err)
}

// Unwrap returns the cause.
func (e *VariableError) Unwrap() error { return e.Err }

// environment is what a pod says of the environment of one of its containers: variable by variable a value, or why there
// is none.
type environment struct {
	pod    *v1.Pod
	node   types.NodeName
	values map[string]string
	errs   map[string]error
	// isOpen says that the container has more variables, which config maps or secrets hold (envFrom).
	isOpen bool
}

// environmentOf reads the variables in their order: a value may refer to those before.
func environmentOf(pod *v1.Pod, node types.NodeName, c *v1.Container) environment {
	e := environment{
		pod: pod, node: node, isOpen: len(c.EnvFrom) > 0,
		values: make(map[string]string, len(c.Env)), errs: make(map[string]error),
	}
	for _, variable := range c.Env {
		value, err := e.read(variable)
		delete(e.values, variable.Name) // the last one of a name counts
		delete(e.errs, variable.Name)
		if err != nil {
			e.errs[variable.Name] = err
			continue
		}
		e.values[variable.Name] = value
	}
	return e
}

func (e environment) read(variable v1.EnvVar) (string, error) {
	switch from := variable.ValueFrom; {
	case variable.Value != "" || from == nil:
		return e.expandValue(variable.Value)
	case from.FieldRef != nil:
		return e.field(from.FieldRef.FieldPath)
	default:
		return "", fmt.Errorf("its value comes from a config map, a secret, a file or a resource, which are not read here: set Options.Environment: %w", volume.ErrUnsupported)
	}
}

// expandValue expands a value. What it refers to and is not there stays as it is written.
func (e environment) expandValue(value string) (string, error) {
	var unknown error
	expanded := expand(value, func(name string) string {
		known, ok := e.values[name]
		switch {
		case ok:
			return known
		case e.errs[name] != nil:
			unknown = fmt.Errorf("it refers to variable %q: %w", name, e.errs[name])
		case e.isOpen:
			unknown = fmt.Errorf("it refers to variable %q: %w", name, errMayBeElsewhere)
		}
		return "$(" + name + ")"
	})
	return expanded, unknown
}

var errMayBeElsewhere = fmt.Errorf("it is not in env, and what envFrom names is not read here: set Options.Environment: %w", volume.ErrUnsupported)

// lookUp returns the value of a variable. One that is empty counts as none, as in Kubernetes: the path would be another.
func (e environment) lookUp(name string) (string, error) {
	value, ok := e.values[name]
	switch {
	case value != "":
		return value, nil
	case ok:
		return "", fmt.Errorf("its value is empty: %w", volume.ErrInvalid)
	case e.errs[name] != nil:
		return "", e.errs[name]
	case e.isOpen:
		return "", errMayBeElsewhere
	}
	return "", fmt.Errorf("the container has no such variable: %w", volume.ErrInvalid)
}

// fields are what a pod itself tells of a field.
var fields = map[string]func(e environment) string{
	"metadata.name":           func(e environment) string { return e.pod.Name },
	"metadata.namespace":      func(e environment) string { return e.pod.Namespace },
	"metadata.uid":            func(e environment) string { return string(e.pod.UID) },
	"spec.nodeName":           func(e environment) string { return string(e.node) },
	"spec.serviceAccountName": func(e environment) string { return e.pod.Spec.ServiceAccountName },
	"status.hostIP":           func(e environment) string { return e.pod.Status.HostIP },
	"status.podIP":            func(e environment) string { return e.pod.Status.PodIP },
	"status.hostIPs": func(e environment) string {
		ips := make([]string, 0, len(e.pod.Status.HostIPs))
		for _, ip := range e.pod.Status.HostIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ",")
	},
	"status.podIPs": func(e environment) string {
		ips := make([]string, 0, len(e.pod.Status.PodIPs))
		for _, ip := range e.pod.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ",")
	},
}

// field returns the value of a field of the pod.
func (e environment) field(path string) (string, error) {
	if dir, key, ok := strings.Cut(path, "['"); ok && strings.HasSuffix(key, "']") {
		key = strings.TrimSuffix(key, "']")
		switch dir {
		case "metadata.labels":
			return e.pod.Labels[key], nil
		case "metadata.annotations":
			return e.pod.Annotations[key], nil
		}
	}
	read, ok := fields[path]
	if !ok {
		return "", fmt.Errorf("it refers to the field %q of the pod, which is none that a variable can have: %w", path, volume.ErrInvalid)
	}
	value := read(e)
	if value == "" && strings.HasPrefix(path, "status.") {
		return "", fmt.Errorf("the pod has no %s yet: call UpdatePod once it has: %w", path, volume.ErrTransient)
	}
	return value, nil
}

// expandSubPath returns the sub-path of a subPathExpr. An error is a [*VariableError].
func (e environment) expandSubPath(expression string) (string, error) {
	var unknown error
	expanded := expand(expression, func(name string) string {
		value, err := e.lookUp(name)
		if err != nil && unknown == nil {
			unknown = &VariableError{Variable: name, Err: err}
		}
		return value
	})
	return expanded, unknown
}

// expand replaces each $(NAME) by what value returns. $$ stands for one $, so that $$(NAME) is the text $(NAME); any other
// $ stands for itself.
func expand(text string, value func(name string) string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = after
		if rest, isEscaped := strings.CutPrefix(after, "$"); isEscaped {
			b.WriteByte('$')
			text = rest
			continue
		}
		if name, rest, isClosed := strings.Cut(after, ")"); isClosed && strings.HasPrefix(name, "(") {
			b.WriteString(value(name[1:]))
			text = rest
			continue
		}
		b.WriteByte('$')
	}
}
