package operationexecutor

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAnEventIsOneLine(t *testing.T) {
	var out bytes.Buffer
	p := NewEventPrinter(&out)
	p.Eventf(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}, v1.EventTypeWarning, "FailedMount", "%q: %v",
		"data", errors.Join(errors.New("one"), errors.New("two")))
	p.Eventf(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk-1"}}, v1.EventTypeNormal, "Recycled", "empty")
	p.Eventf(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "0b8f"}}, v1.EventTypeNormal, "SuccessfulUnmountVolume", "gone")
	assert.Equal(t, "warning: Pod default/web: FailedMount: \"data\": one; two\nnormal: PersistentVolume disk-1: Recycled: empty\n"+
		"normal: Pod 0b8f: SuccessfulUnmountVolume: gone\n", out.String())
}
