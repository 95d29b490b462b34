package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// codec turns objects into values and back. A value is the place of its write in the transaction, a line feed, and JSON.
type codec struct{ scheme *runtime.Scheme }

// encode leaves the resource version out: etcd gives it when it writes.
func (codec) encode(place int64, obj store.Object) (string, error) {
	given := obj.GetResourceVersion()
	obj.SetResourceVersion("")
	content, err := json.Marshal(obj)
	obj.SetResourceVersion(given)
	return strconv.FormatInt(place, 10) + "\n" + string(content), err
}

// decode returns the object of a value that was written at a revision.
func (c codec) decode(kind schema.GroupVersionKind, value []byte, revision int64) (store.Object, version, error) {
	head, content, found := bytes.Cut(value, []byte("\n"))
	place, err := strconv.ParseInt(string(head), 10, 64)
	if err != nil || !found || place < 0 || place > lastPlace {
		return nil, version{}, fmt.Errorf("a %s at revision %d was not written by this store: give it a prefix of its own: %w",
			kind.Kind, revision, store.ErrInvalid)
	}
	made, err := c.scheme.New(kind)
	if err != nil {
		return nil, version{}, err
	}
	obj, ok := made.(store.Object)
	if !ok {
		return nil, version{}, fmt.Errorf("%T has no metadata: %w", made, store.ErrInvalid)
	}
	if err := json.Unmarshal(content, obj); err != nil {
		return nil, version{}, fmt.Errorf("a %s at revision %d: %w", kind.Kind, revision, err)
	}
	v := version{revision, place}
	obj.SetResourceVersion(v.String())
	obj.GetObjectKind().SetGroupVersionKind(kind)
	return obj, v, nil
}
