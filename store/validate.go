package store

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Validate checks what every store checks of an object before it keeps it: that its kind is one of [Kinds], that its name and
// namespace are those that Kubernetes allows, that it has a namespace exactly when its kind asks for one, and that all its strings
// are UTF-8. The error matches [ErrInvalid] and says what to change. It returns the object's key and metadata.
func Validate(obj runtime.Object) (Key, metav1.Object, error) { return (*KindTable)(nil).Validate(obj) }

// Validate is the function [Validate] for the kinds of the table.
func (t *KindTable) Validate(obj runtime.Object) (Key, metav1.Object, error) {
	key, err := t.KeyOf(obj)
	if err != nil {
		return Key{}, nil, err
	}
	if err := t.ValidateKey(key); err != nil {
		return Key{}, nil, err
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return Key{}, nil, fmt.Errorf("%T has no metadata: %w", obj, ErrInvalid)
	}
	return key, meta, checkText(key, obj)
}

// Validate checks that the kind is one of [Kinds], that the name is a DNS subdomain, and that the namespace is a DNS label, or
// empty for a kind that has none. The error matches [ErrInvalid].
func (k Key) Validate() error { return (*KindTable)(nil).ValidateKey(k) }

// ValidateKey is the method Validate of [Key] for the kinds of the table.
func (t *KindTable) ValidateKey(k Key) error {
	namespaced, err := t.Namespaced(k.Kind)
	if err != nil {
		return err
	}
	if problems := validation.IsDNS1123Subdomain(k.Name); len(problems) > 0 {
		return fmt.Errorf("name of %s: %s: %w", k, strings.Join(problems, "; "), ErrInvalid)
	}
	if namespaced {
		return k.validateNamespace()
	}
	if k.Namespace != "" {
		return fmt.Errorf("%s has no namespace of its own: take %q away: %w", k.Kind.Kind, k.Namespace, ErrInvalid)
	}
	return nil
}

func (k Key) validateNamespace() error {
	if problems := validation.IsDNS1123Label(k.Namespace); len(problems) > 0 {
		return fmt.Errorf("namespace of %s: %s: %w", k, strings.Join(problems, "; "), ErrInvalid)
	}
	return nil
}

// checkFinalizers refuses a finalizer that is added after the deletion of the object has begun.
func checkFinalizers(key Key, old, updated metav1.Object) error {
	if old.GetDeletionTimestamp() == nil {
		return nil
	}
	had := make(map[string]bool, len(old.GetFinalizers()))
	for _, f := range old.GetFinalizers() {
		had[f] = true
	}
	for _, f := range updated.GetFinalizers() {
		if !had[f] {
			return fmt.Errorf("%s is being deleted: finalizer %q cannot be added any more: %w", key, f, ErrInvalid)
		}
	}
	return nil
}
