package objects

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
)

// ClaimToCopy returns the name of the claim of the same namespace that the data source of a claim names, and "" if it names none.
func ClaimToCopy(claim *v1.PersistentVolumeClaim) string {
	if ref := claim.Spec.DataSourceRef; ref != nil {
		if Deref(ref.APIGroup) != "" || ref.Kind != "PersistentVolumeClaim" || cmp.Or(Deref(ref.Namespace), claim.Namespace) != claim.Namespace {
			return ""
		}
		return ref.Name
	}
	if ref := claim.Spec.DataSource; ref != nil && Deref(ref.APIGroup) == "" && ref.Kind == "PersistentVolumeClaim" {
		return ref.Name
	}
	return ""
}
