package objects

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newClass(name string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range change {
		f(class)
	}
	return class
}

func TestDefaultClass(t *testing.T) {
	now := metav1.Now()
	isDefault := func(age time.Duration) func(*storagev1.StorageClass) {
		return func(c *storagev1.StorageClass) {
			c.CreationTimestamp = metav1.NewTime(now.Add(-age))
			c.Annotations = map[string]string{AnnDefaultClass: "true"}
		}
	}
	type classes = []*storagev1.StorageClass
	assert.Nil(t, DefaultClass(classes{newClass("a")}))
	assert.Equal(t, "b", DefaultClass(classes{newClass("a"), newClass("b", isDefault(time.Hour))}).Name)
	assert.Equal(t, "c", DefaultClass(classes{newClass("b", isDefault(time.Hour)), newClass("c", isDefault(0)), newClass("d", isDefault(time.Minute))}).Name)
	assert.Equal(t, "a", DefaultClass(classes{newClass("b", isDefault(0)), newClass("a", isDefault(0))}).Name)
}
