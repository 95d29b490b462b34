package files

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/atomicwriter"
)

func (p *payload) addDownwardAPI(ctx context.Context, source *v1.DownwardAPIProjection) error {
	for _, item := range source.Items {
		text, err := p.downward(ctx, item)
		if err == nil {
			err = p.put(item.Path, item.Mode, atomicwriter.FileProjection{Data: []byte(text)})
		}
		if err != nil {
			return fmt.Errorf("downward API: file %q: %w", item.Path, err)
		}
	}
	return nil
}

func (p *payload) downward(ctx context.Context, item v1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil && item.ResourceFieldRef != nil:
		return "", fmt.Errorf("it names a fieldRef and a resourceFieldRef: give one: %w", volume.ErrInvalid)
	case item.FieldRef != nil && item.FieldRef.APIVersion != "" && item.FieldRef.APIVersion != "v1":
		return "", fmt.Errorf("its fieldRef has apiVersion %q: use v1, or none: %w", item.FieldRef.APIVersion, volume.ErrUnsupported)
	case item.FieldRef != nil:
		return fieldOf(p.pod, item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		return p.resource(ctx, item.ResourceFieldRef)
	}
	return "", fmt.Errorf("it names neither a fieldRef nor a resourceFieldRef: give one: %w", volume.ErrInvalid)
}

// fieldOf returns a field of the pod. The maps are lines key="value", sorted, as in Kubernetes.
func fieldOf(pod *v1.Pod, path string) (string, error) {
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return lines(pod.Labels), nil
	case "metadata.annotations":
		return lines(pod.Annotations), nil
	}
	if key, ok := subscript(path, "metadata.labels"); ok {
		return pod.Labels[key], checkKey(path, key)
	}
	if key, ok := subscript(path, "metadata.annotations"); ok {
		return pod.Annotations[key], checkKey(path, strings.ToLower(key))
	}
	return "", fmt.Errorf("field %q cannot be a file: use metadata.name, .namespace, .uid, .labels, .annotations, .labels['key'] or .annotations['key']: %w",
		path, volume.ErrInvalid)
}

// subscript returns the key of path, which is field['key'].
func subscript(path, field string) (key string, ok bool) {
	key, ok = strings.CutPrefix(path, field+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(key, "']")
}

// checkKey refuses what can be no key: a file of it would be empty for ever. A key that the pod does not have is an empty file.
func checkKey(path, key string) error {
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return fmt.Errorf("field %q: what is in the brackets can be no key: %s: %w", path, strings.Join(wrong, "; "), volume.ErrInvalid)
	}
	return nil
}

func lines(m map[string]string) string {
	all := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(all, "\n")
}

// resource returns a request or a limit of a container in multiples of the divisor, rounded up. A limit that is not set is
// what the node can allocate, a request that is not set is zero.
func (p *payload) resource(ctx context.Context, ref *v1.ResourceFieldSelector) (string, error) {
	of, err := containerOf(p.pod, ref.ContainerName)
	if err != nil {
		return "", err
	}
	what, name, _ := strings.Cut(ref.Resource, ".")
	known := name == "cpu" || name == "memory" || name == "ephemeral-storage" || strings.HasPrefix(name, v1.ResourceHugePagesPrefix)
	if !known || what != "limits" && what != "requests" {
		return "", fmt.Errorf("resource %q is not known: use limits. or requests. with cpu, memory, ephemeral-storage or hugepages-: %w",
			ref.Resource, volume.ErrInvalid)
	}
	amount := of.Requests[v1.ResourceName(name)]
	if what == "limits" {
		if amount, err = p.limit(ctx, of, v1.ResourceName(name)); err != nil {
			return "", err
		}
	}
	return inUnits(amount, ref.Divisor)
}

func (p *payload) limit(ctx context.Context, of v1.ResourceRequirements, name v1.ResourceName) (resource.Quantity, error) {
	if limit, ok := of.Limits[name]; ok && !limit.IsZero() {
		return limit, nil
	}
	if p.getters.Node == nil {
		return resource.Quantity{}, noGetter("allocatable resources of the node")
	}
	allocatable, err := p.getters.Node.Allocatable(ctx)
	if err != nil {
		return resource.Quantity{}, fmt.Errorf("allocatable resources of the node: %w", err)
	}
	return allocatable[name], nil
}

// containerOf returns the resources of a container of the pod.
func containerOf(pod *v1.Pod, name string) (v1.ResourceRequirements, error) {
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if container.Name == name {
			return container.Resources, nil
		}
	}
	return v1.ResourceRequirements{}, fmt.Errorf("the pod has no container %q: %w", name, volume.ErrInvalid)
}

// inUnits divides, with a precision of a thousandth, and rounds up. No divisor is one.
func inUnits(amount, divisor resource.Quantity) (string, error) {
	if divisor.Sign() < 0 {
		return "", fmt.Errorf("divisor %s is negative: %w", divisor.String(), volume.ErrInvalid)
	}
	units := amount.Value()
	if !divisor.IsZero() && divisor.Value() > 1 {
		units = ceil(amount.Value(), divisor.Value())
	} else if !divisor.IsZero() {
		units = ceil(amount.MilliValue(), divisor.MilliValue())
	}
	return strconv.FormatInt(units, 10), nil
}

func ceil(a, b int64) int64 {
	units := a / b
	if a%b > 0 {
		units++
	}
	return units
}
