package containers

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// Environment holds the environment variables that a pod sets for one of its containers: for each variable a value, or the
// reason why the value is unknown.
type Environment struct {
	pod    *v1.Pod
	node   types.NodeName
	values map[string]string
	errs   map[string]error
	// isOpen says that the container has further variables, from config maps or secrets (envFrom).
	isOpen bool
}

// EnvironmentOf reads the variables in their order: a value may refer to earlier variables.
func EnvironmentOf(pod *v1.Pod, node types.NodeName, c *v1.Container) Environment {
	e := Environment{
		pod: pod, node: node, isOpen: len(c.EnvFrom) > 0,
		values: make(map[string]string, len(c.Env)), errs: make(map[string]error),
	}
	for _, variable := range c.Env {
		value, err := e.read(variable)
		delete(e.values, variable.Name) // the last variable of a name counts
		delete(e.errs, variable.Name)
		if err != nil {
			e.errs[variable.Name] = err
			continue
		}
		e.values[variable.Name] = value
	}
	return e
}

func (e Environment) read(variable v1.EnvVar) (string, error) {
	switch from := variable.ValueFrom; {
	case variable.Value != "" || from == nil:
		return e.expandValue(variable.Value)
	case from.FieldRef != nil:
		return e.field(from.FieldRef.FieldPath)
	default:
		return "", fmt.Errorf("its value comes from a config map, a secret, a file or a resource, which are not read here: set Options.Environment: %w", volume.ErrUnsupported)
	}
}

// expandValue expands the references in a value. A reference to a variable that does not exist stays as it is written.
func (e Environment) expandValue(value string) (string, error) {
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

// lookUp returns the value of a variable. An empty value is an error, as in Kubernetes: it would lead to another path.
func (e Environment) lookUp(name string) (string, error) {
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

// fields reads those fields of a pod that a variable may refer to.
var fields = map[string]func(e Environment) string{
	"metadata.name":           func(e Environment) string { return e.pod.Name },
	"metadata.namespace":      func(e Environment) string { return e.pod.Namespace },
	"metadata.uid":            func(e Environment) string { return string(e.pod.UID) },
	"spec.nodeName":           func(e Environment) string { return string(e.node) },
	"spec.serviceAccountName": func(e Environment) string { return e.pod.Spec.ServiceAccountName },
	"status.hostIP":           func(e Environment) string { return e.pod.Status.HostIP },
	"status.podIP":            func(e Environment) string { return e.pod.Status.PodIP },
	"status.hostIPs": func(e Environment) string {
		ips := make([]string, 0, len(e.pod.Status.HostIPs))
		for _, ip := range e.pod.Status.HostIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ",")
	},
	"status.podIPs": func(e Environment) string {
		ips := make([]string, 0, len(e.pod.Status.PodIPs))
		for _, ip := range e.pod.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ",")
	},
}

// field returns the value of a field of the pod.
func (e Environment) field(path string) (string, error) {
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

// ExpandSubPath expands a subPathExpr to a sub-path. If the value of a variable is unknown, err says why, and unknown is the
// name of the first such variable.
func (e Environment) ExpandSubPath(expression string) (expanded, unknown string, err error) {
	expanded = expand(expression, func(name string) string {
		value, why := e.lookUp(name)
		if why != nil && err == nil {
			unknown, err = name, why
		}
		return value
	})
	return expanded, unknown, err
}

// Known returns an environment in which the value of every variable is known.
func Known(values map[string]string) Environment { return Environment{values: values} }

// expand replaces each $(NAME) by the result of value. $$ stands for one $, and thus $$(NAME) is the text $(NAME). Any other
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
