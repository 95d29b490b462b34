package populator

import (
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// overwrite changes every field that can be reached from v: it sets it, adds to it or takes from it.
func overwrite(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() && depth < 7 {
			v.Set(reflect.New(v.Type().Elem()))
		}
		if !v.IsNil() {
			overwrite(v.Elem(), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				overwrite(f, depth+1)
			}
		}
	case reflect.Slice:
		if v.Len() == 0 && depth < 7 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			overwrite(v.Index(i), depth+1)
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		overwrite(key, depth+1)
		overwrite(value, depth+1)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8:
		v.SetUint(v.Uint() + 1)
	}
}

// TestWhatIsKeptOfAPodIsNotTheCallers: no change by the caller, in any field, changes the manager's copy of the pod.
func TestWhatIsKeptOfAPodIsNotTheCallers(t *testing.T) {
	pod := &v1.Pod{}
	overwrite(reflect.ValueOf(pod), 0)
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{"memory": resource.MustParse("1Gi")}
	kept := copyOfPod(pod)
	was := kept.DeepCopy()
	require.NotEmpty(t, kept.Spec.Containers[0].Env)
	for range 3 {
		overwrite(reflect.ValueOf(pod), 0)
	}
	assert.Equal(t, was, kept)
}

// TestEveryFieldOfAPodIsKeptOrNot: a new field in k8s.io/api fails the test until it is listed as kept or as left out.
func TestEveryFieldOfAPodIsKeptOrNot(t *testing.T) {
	pod := &v1.Pod{}
	overwrite(reflect.ValueOf(pod), 0)
	pod.CreationTimestamp = metav1.Unix(1, 0)
	kept := copyOfPod(pod)
	for _, c := range []struct {
		of         any
		kept, left []string
	}{
		{
			kept.ObjectMeta,
			[]string{"Name", "GenerateName", "Namespace", "SelfLink", "UID", "ResourceVersion", "Generation", "CreationTimestamp", "DeletionTimestamp", "DeletionGracePeriodSeconds", "Labels", "Annotations", "OwnerReferences", "Finalizers"},
			[]string{"ManagedFields"},
		},
		{
			kept.Spec,
			[]string{"Volumes", "InitContainers", "Containers", "EphemeralContainers", "ServiceAccountName", "NodeName", "SecurityContext", "Overhead", "Resources", "HostUsers"},
			[]string{
				"RestartPolicy", "TerminationGracePeriodSeconds", "ActiveDeadlineSeconds", "DNSPolicy", "NodeSelector", "DeprecatedServiceAccount",
				"AutomountServiceAccountToken", "HostNetwork", "HostPID", "HostIPC", "ShareProcessNamespace", "ImagePullSecrets", "Hostname", "Subdomain",
				"Affinity", "SchedulerName", "Tolerations", "HostAliases", "PriorityClassName", "Priority", "DNSConfig", "ReadinessGates", "RuntimeClassName",
				"EnableServiceLinks", "PreemptionPolicy", "TopologySpreadConstraints", "SetHostnameAsFQDN", "OS", "SchedulingGates",
				"ResourceClaims", "HostnameOverride", "WorkloadRef",
			},
		},
		{
			kept.Spec.Containers[0],
			[]string{"Name", "Env", "EnvFrom", "Resources", "RestartPolicy", "VolumeMounts", "VolumeDevices", "SecurityContext"},
			[]string{
				"Image", "Command", "Args", "WorkingDir", "Ports", "ResizePolicy", "RestartPolicyRules", "LivenessProbe", "ReadinessProbe", "StartupProbe",
				"Lifecycle", "TerminationMessagePath", "TerminationMessagePolicy", "ImagePullPolicy", "Stdin", "StdinOnce", "TTY",
			},
		},
	} {
		of := reflect.ValueOf(c.of)
		for i := range of.NumField() {
			name := of.Type().Field(i).Name
			assert.NotEqual(t, slices.Contains(c.kept, name), slices.Contains(c.left, name), "%s.%s: decide whether it is kept", of.Type(), name)
			assert.Equal(t, slices.Contains(c.left, name), of.Field(i).IsZero(), "%s.%s", of.Type(), name)
		}
	}
}

// TestTheEnvironmentOfAContainerIsKeptForASubPathExprAlone: without a subPathExpr the copy of a container has no
// environment.
func TestTheEnvironmentOfAContainerIsKeptForASubPathExprAlone(t *testing.T) {
	pod := podOf("a", "own")
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "A", Value: "b"}}
	assert.Empty(t, copyOfPod(pod).Spec.Containers[0].Env)
	pod.Spec.Containers[0].VolumeMounts[0].SubPathExpr = "$(A)"
	assert.Equal(t, pod.Spec.Containers[0].Env, copyOfPod(pod).Spec.Containers[0].Env)
}

// BenchmarkCopyOfPod measures how much memory the manager keeps of a pod: of one that was written by hand, and of one from
// an API server.
func BenchmarkCopyOfPod(b *testing.B) {
	full := podOf("a", "own")
	for i := range 3 {
		c := v1.Container{Name: "c" + strconv.Itoa(i), Image: "registry.example.com/team/app:v1", Args: []string{"--port=8080", "--log=info"}, ImagePullPolicy: v1.PullAlways}
		for j := range 12 {
			c.Env = append(c.Env, v1.EnvVar{Name: "NAME_" + strconv.Itoa(j), Value: "value of the variable"})
		}
		c.LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/healthz"}}}
		c.ReadinessProbe, c.Ports = c.LivenessProbe.DeepCopy(), []v1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		full.Spec.Containers = append(full.Spec.Containers, c)
		full.Status.ContainerStatuses = append(full.Status.ContainerStatuses, v1.ContainerStatus{Name: c.Name, Image: c.Image})
	}
	full.Spec.Tolerations = make([]v1.Toleration, 4)
	full.Status.Conditions = make([]v1.PodCondition, 5)
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{Raw: make([]byte, 3000)}}}
	for name, pod := range map[string]*v1.Pod{"plain": podOf("a", "own"), "full": full} {
		for way, keep := range map[string]func(*v1.Pod) *v1.Pod{"all": (*v1.Pod).DeepCopy, "used": copyOfPod} {
			b.Run(name+"/"+way, func(b *testing.B) {
				const pods = 10000
				var before, after runtime.MemStats
				for b.Loop() {
					runtime.GC()
					runtime.ReadMemStats(&before)
					kept := make([]*v1.Pod, pods)
					for i := range kept {
						kept[i] = keep(pod)
					}
					runtime.GC()
					runtime.ReadMemStats(&after)
					runtime.KeepAlive(kept)
				}
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/pods, "heap-B/pod")
			})
		}
	}
}
