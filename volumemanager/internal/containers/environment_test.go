package containers

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

func fromField(path string) *v1.EnvVarSource {
	return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
}

// expressive returns a pod whose container has variables of every kind.
func expressive() (*v1.Pod, *v1.Container) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web"}}
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	pod.Labels = map[string]string{"app": "shop", "none": ""}
	pod.Annotations = map[string]string{"example.com/site": "a.b"}
	pod.Spec.ServiceAccountName = "robot"
	pod.Status.PodIPs = []v1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}
	c := &pod.Spec.Containers[0]
	c.Env = []v1.EnvVar{
		{Name: "PLAIN", Value: "x"},
		{Name: "TWICE", Value: "old"},
		{Name: "TWICE", Value: "$(PLAIN)-new"},
		{Name: "LATER", Value: "$(AFTERWARDS)"},
		{Name: "AFTERWARDS", Value: "y"},
		{Name: "EMPTY"},
		{Name: "NAME", ValueFrom: fromField("metadata.name")},
		{Name: "NAMESPACE", ValueFrom: fromField("metadata.namespace")},
		{Name: "UID", ValueFrom: fromField("metadata.uid")},
		{Name: "NODE", ValueFrom: fromField("spec.nodeName")},
		{Name: "ACCOUNT", ValueFrom: fromField("spec.serviceAccountName")},
		{Name: "APP", ValueFrom: fromField("metadata.labels['app']")},
		{Name: "NO_LABEL", ValueFrom: fromField("metadata.labels['other']")},
		{Name: "SITE", ValueFrom: fromField("metadata.annotations['example.com/site']")},
		{Name: "IPS", ValueFrom: fromField("status.podIPs")},
		{Name: "HOST_IP", ValueFrom: fromField("status.hostIP")},
		{Name: "STRANGE", ValueFrom: fromField("spec.volumes")},
		{Name: "SECRET", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{Key: "k"}}},
		{Name: "INDIRECT", Value: "a-$(SECRET)"},
	}
	return pod, c
}

func TestSubPathExprIsExpandedFromWhatThePodTells(t *testing.T) {
	pod, c := expressive()
	e := EnvironmentOf(pod, "node-1", c)
	for expression, want := range map[string]string{
		"$(PLAIN)":                   "x",
		"a/$(PLAIN)/$(NAME)":         "a/x/web",
		"$(TWICE)":                   "x-new",
		"$(LATER)":                   "$(AFTERWARDS)",
		"$(NAMESPACE)/$(UID)":        "default/uid-web",
		"$(NODE)-$(ACCOUNT)-$(APP)":  "node-1-robot-shop",
		"$(SITE)":                    "a.b",
		"$(IPS)":                     "10.0.0.7,fd00::7",
		"$$(PLAIN)":                  "$(PLAIN)",
		"$$$(PLAIN)":                 "$x",
		"cost$ $x $(PLAIN":           "cost$ $x $(PLAIN",
		"$":                          "$",
		"$$":                         "$",
		"no variable":                "no variable",
		"$PLAIN)":                    "$PLAIN)",
		"$(PLAIN)$(PLAIN)$(PLAIN)$$": "xxx$",
	} {
		got, _, err := e.ExpandSubPath(expression)
		require.NoError(t, err, expression)
		assert.Equal(t, want, got, expression)
	}
}

func TestAVariableWithoutAValueIsNamed(t *testing.T) {
	pod, c := expressive()
	for expression, test := range map[string]struct {
		variable string
		class    error
	}{
		"a/$(NOWHERE)":       {"NOWHERE", volume.ErrInvalid},
		"$()":                {"", volume.ErrInvalid},
		"$(EMPTY)":           {"EMPTY", volume.ErrInvalid},
		"$(NO_LABEL)":        {"NO_LABEL", volume.ErrInvalid},
		"$(STRANGE)":         {"STRANGE", volume.ErrInvalid},
		"$(PLAIN)/$(SECRET)": {"SECRET", volume.ErrUnsupported},
		"$(INDIRECT)":        {"INDIRECT", volume.ErrUnsupported},
		"$(HOST_IP)":         {"HOST_IP", volume.ErrTransient},
	} {
		_, unknown, err := EnvironmentOf(pod, "node-1", c).ExpandSubPath(expression)
		assert.Equal(t, test.variable, unknown)
		require.ErrorIs(t, err, test.class, expression)
	}
	// What is not in env may be in what envFrom names, and so may what a value refers to.
	c.EnvFrom = []v1.EnvFromSource{{}}
	e := EnvironmentOf(pod, "node-1", c)
	for _, expression := range []string{"$(NOWHERE)", "$(LATER)"} {
		_, _, err := e.ExpandSubPath(expression)
		require.ErrorIs(t, err, volume.ErrUnsupported, expression)
	}
	got, _, err := e.ExpandSubPath("$(PLAIN)")
	require.NoError(t, err)
	assert.Equal(t, "x", got)
}
